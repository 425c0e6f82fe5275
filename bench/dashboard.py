"""The dashboard of a served repository, before and after load: its own queries, a real Prometheus.

    python bench/dashboard.py [REPOSITORY]

Serves the repository (without one: smollm2/135m_draft_target, built and written here), asks it a
few prompts, and prints every line of the generated dashboard. Debian's package `prometheus`, where
it is installed, scrapes and answers; otherwise Prometheus' client library parses /metrics, and what
is printed are the series that a line reads, added up.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from toolkit.execute import build
from toolkit.plan import make_plan
from toolkit.recipe.load import load_recipe
from toolkit.serving.client import Ask, generate
from toolkit.serving.deploy.bundle import Bundle, open_bundle
from toolkit.serving.deploy.compose import prometheus
from toolkit.serving.monitoring.dashboard import panels
from toolkit.serving.monitoring.queries import metrics_in
from toolkit.serving.monitoring.rules import alert_rules
from toolkit.serving.repository import write_repository
from toolkit.serving.server import Address, TritonServer
from toolkit.store import Store

PORTS = (18100, 18101, 18102, 18103)
REQUESTS, PROMPTS = 12, ("Write a haiku about rain.", "def fibonacci(n):", "1, 2, 3, 1, 2, 3, 1,")
SCRAPE_S, UP_S = 1.0, 60.0

# An expression -> its value; NaN where it has none yet.
Read = Callable[[str], float]


@contextmanager
def scraping(bundle: Bundle, address: Address, directory: Path) -> Iterator[Read]:
    """The generated configuration, but for a faster scrape."""
    config = prometheus(bundle, f"127.0.0.1:{address.metrics_port}")
    config["global"] = {"scrape_interval": f"{int(SCRAPE_S)}s", "evaluation_interval": "5s"}
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    (directory / "alerts.yml").write_text(yaml.safe_dump(alert_rules(bundle)))
    url = f"127.0.0.1:{PORTS[3]}"
    command = ["prometheus", f"--config.file={directory / 'prometheus.yml'}",
               f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={url}",
               "--log.level=error"]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        _until(lambda: not math.isnan(_query(url, "sum (up) > 0")))
        yield lambda expression: _query(url, expression)
    finally:
        process.terminate()
        process.wait()


def _query(url: str, expression: str) -> float:
    words = urllib.parse.urlencode({"query": f"sum ({expression})"})
    try:
        with urllib.request.urlopen(f"http://{url}/api/v1/query?{words}", timeout=10) as answer:
            result = json.load(answer)["data"]["result"]
    except OSError:
        return math.nan  # not up yet
    return float(result[0]["value"][1]) if result else math.nan


def parsing(address: Address, model: str) -> Read:
    """Without a Prometheus: the sum of the series that an expression reads."""
    from prometheus_client.parser import text_string_to_metric_families as families

    def read(expression: str) -> float:
        names = metrics_in(expression)
        with urllib.request.urlopen(address.metrics) as response:
            text = response.read().decode()
        return math.fsum(
            sample.value
            for family in families(text)
            for sample in family.samples
            # The client ends every counter in _total, also Triton's own, which do not.
            if {sample.name, sample.name.removesuffix("_total")} & names
            and sample.labels.get("model") == model
        )

    return read


def put_load(bundle: Bundle, address: Address) -> None:
    for number in range(REQUESTS):
        plain = 0 if number % 4 == 3 else None  # a control group
        prompt = PROMPTS[number % len(PROMPTS)]
        ask = Ask(text_input=prompt, max_tokens=32, num_draft_tokens=plain)
        generate(address.http, bundle.entry, ask)


def show(bundle: Bundle, before: dict[str, float], after: dict[str, float]) -> None:
    print(f"{'panel':34} {'line':28} {'before':>10} {'after':>10}")
    for panel in panels(bundle):
        for expression, legend in panel.lines:
            numbers = (_text(read[expression]) for read in (before, after))
            print(f"{panel.title:34} {legend:28} " + " ".join(f"{text:>10}" for text in numbers))


def _text(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UP_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("prometheus does not come up")
        time.sleep(0.2)


def _repository(directory: Path) -> Path:
    store = Store(None)
    built = build(make_plan(load_recipe("smollm2/135m_draft_target"), store), store)
    return write_repository(built, directory / "repository")


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="spectool-dashboard-") as name:
        directory = Path(name)
        bundle = open_bundle(Path(arguments[0]) if arguments else _repository(directory))
        address = Address("127.0.0.1", *PORTS[:3])
        lines = [expression for panel in panels(bundle) for expression, _ in panel.lines]
        with TritonServer(bundle.repository, list(bundle.manifest["models"]), address):
            if shutil.which("prometheus"):
                how = "queries answered by Prometheus"
                with scraping(bundle, address, directory) as read:
                    time.sleep(3 * SCRAPE_S)
                    before = {line: read(line) for line in lines}
                    put_load(bundle, address)
                    time.sleep(3 * SCRAPE_S)
                    after = {line: read(line) for line in lines}
            else:
                how = "no prometheus here: sums of the series that each line reads"
                read = parsing(address, bundle.entry)
                before = {line: read(line) for line in lines}
                put_load(bundle, address)
                after = {line: read(line) for line in lines}
    print(f"dashboard of {bundle.recipe.name}, {REQUESTS} requests ({how})")
    show(bundle, before, after)
    moved = sum(after[line] != before[line] and not math.isnan(after[line]) for line in lines)
    print(f"{moved} of {len(lines)} lines moved")
    if not moved:
        raise SystemExit("the dashboard did not move")


if __name__ == "__main__":
    main(sys.argv[1:])
