"""What a dashboard and its alerts read is what real servers export, and it moves under load."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import Deployment
from tests.serving.test_ports import free_ports
from toolkit.serving.client import Ask, generate
from toolkit.serving.deploy.bundle import open_bundle
from toolkit.serving.deploy.compose import prometheus
from toolkit.serving.monitoring.dashboard import panels
from toolkit.serving.monitoring.exported import exported
from toolkit.serving.monitoring.queries import metrics_in
from toolkit.serving.monitoring.rules import alert_rules
from toolkit.serving.server import Address, TritonServer
from toolkit.serving.traces import trace_flags

pytestmark = pytest.mark.triton

PROMETHEUS = shutil.which("prometheus")
# Only after something went wrong, or only with a GPU.
SOMETIMES = {"nv_inference_request_failure"}


def put_load(deployment: Deployment) -> None:
    """Requests that draft, and some that do not."""
    for number in range(6):
        ask = Ask(
            text_input=f"abcabcabc {number}",
            max_tokens=24,
            end_id=-1,
            num_draft_tokens=0 if number % 3 == 2 else None,
        )
        generate(deployment.address.http, deployment.model, ask)


def scraped(deployment: Deployment) -> dict[str, float]:
    """Sums by sample name of the model that clients ask, read by Prometheus' own client."""
    with urllib.request.urlopen(deployment.address.metrics) as response:
        text = response.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The client gives every counter the ending that Triton's own ones lack.
            name = sample.name if sample.name in text else sample.name.removesuffix("_total")
            if sample.labels.get("model") == deployment.model:
                found[name] = found.get(name, 0.0) + sample.value
    return found


def test_every_query_reads_what_the_server_exports(deployment):
    put_load(deployment)
    bundle = open_bundle(deployment.repository)
    names = set(scraped(deployment)) | SOMETIMES
    assert exported(bundle.layout, bundle.recipe.backend) <= names
    for panel in panels(bundle):
        for expression, _ in panel.lines:
            assert metrics_in(expression) <= names, panel.title
    for rule in alert_rules(bundle)["groups"][0]["rules"]:
        assert metrics_in(rule["expr"]) <= names, rule["alert"]


def test_what_the_dashboard_reads_moves_under_load(deployment):
    before = scraped(deployment)
    put_load(deployment)
    after = scraped(deployment)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown("generation_tokens_total") == 6 * 24
    assert grown("request_success_total") == 6
    assert grown("time_per_output_token_seconds_count") == 6
    assert grown("spec_decode_acceptance_length_count") == 4  # of those that drafted
    drafts = grown("spec_decode_num_drafts_total")
    length = 1 + grown("spec_decode_num_accepted_tokens_total") / drafts
    assert 1 <= length <= 5  # max_draft_len is 4
    deadline = time.monotonic() + 10  # it is counted down after the last response
    while scraped(deployment)["num_requests_running"]:
        assert time.monotonic() < deadline
    assert after["num_requests_waiting"] == 0
    if deployment.model == "tensorrt_llm_bls":
        spent = [grown(f"spec_decode_{what}_seconds_total") for what in ("draft", "verify")]
        assert all(0 < seconds < grown("e2e_request_latency_seconds_sum") for seconds in spent)


@contextmanager
def running_prometheus(deployment: Deployment, directory: Path) -> Iterator[str]:
    """The generated configuration, but for a scrape every 200 ms."""
    bundle = open_bundle(deployment.repository)
    [port] = free_ports(1)
    config = prometheus(bundle, f"127.0.0.1:{deployment.address.metrics_port}")
    config["global"] = {"scrape_interval": "200ms", "scrape_timeout": "200ms",
                        "evaluation_interval": "1s"}  # fmt: skip
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    (directory / "alerts.yml").write_text(yaml.safe_dump(alert_rules(bundle)))
    command = [
        str(PROMETHEUS), f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def answers(url: str, expression: str) -> list[float]:
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=10) as response:
            found = json.load(response)
    except OSError:
        return []  # not up yet
    assert found["status"] == "success", expression
    return [float(sample["value"][1]) for sample in found["data"]["result"]]


@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here (Debian's package has one)")
def test_a_real_prometheus_answers_every_panel_and_loads_every_rule(bls, tmp_path):
    bundle = open_bundle(bls.repository)
    with running_prometheus(bls, tmp_path) as url:
        deadline = time.monotonic() + 60
        wanted = "sum (generation_tokens_total)"
        while len(answers(url, wanted)) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        for _ in range(3):  # a rate wants samples before and after
            put_load(bls)
            time.sleep(0.5)
        with urllib.request.urlopen(f"{url}/api/v1/rules") as response:
            [group] = json.load(response)["data"]["groups"]
        assert [rule["health"] for rule in group["rules"]] != []
        assert len(group["rules"]) == len(alert_rules(bundle)["groups"][0]["rules"])
        for panel in panels(bundle):
            values = [value for expr, _ in panel.lines for value in answers(url, expr)]
            if panel.title != "Failed requests":  # nobody has failed yet
                assert values, panel.title
            if panel.title == "Acceptance length":
                assert 1 <= values[0] <= 5
            if panel.title == "Output tokens per second":
                assert values[0] > 0


def test_triton_sends_traces_as_the_recipe_says(bls, tmp_path):
    """To a collector that is a web server: OTLP over HTTP."""
    bodies: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    collector = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    recipe = open_bundle(bls.repository).recipe
    traces = {"url": f"http://127.0.0.1:{collector.server_port}/v1/traces", "rate": 1}
    given = recipe.model_dump(mode="json")
    given["serve"]["traces"] = traces
    flags = trace_flags(type(recipe).model_validate(given))

    repository = tmp_path / "repo"
    (repository / "postprocessing").parent.mkdir()
    shutil.copytree(bls.repository / "postprocessing", repository / "postprocessing")
    address = Address("127.0.0.1", *free_ports(3))
    with TritonServer(repository, ["postprocessing"], address, timeout_s=180, flags=flags):
        body = {
            "inputs": [
                {"name": "TOKENS_BATCH", "shape": [1, 1, 2], "datatype": "INT32", "data": [65, 66]},
                {"name": "SEQUENCE_LENGTH", "shape": [1, 1], "datatype": "INT32", "data": [2]},
            ]
        }
        request = urllib.request.Request(
            f"{address.http}/v2/models/postprocessing/infer", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request) as response:
            assert b"AB" in response.read()
    deadline = time.monotonic() + 10
    while not bodies and time.monotonic() < deadline:
        time.sleep(0.05)
    collector.shutdown()
    collector.server_close()
    [resource] = json.loads(bodies[0])["resourceSpans"]
    attributes = {a["key"]: a["value"]["stringValue"] for a in resource["resource"]["attributes"]}
    assert attributes["service.name"] == recipe.name
    assert b"postprocessing" in bodies[0]
