"""Three ratios of served models: python bench/serving.py --tune [--rounds 5]

1. BLS over in-process: TPOT of the two layouts at one stream.
2. In-flight batching: tokens/s of 8 streams over tokens/s of one, without speculation.
3. Speculation as the recipe says over none: tokens/s at loads from 1 to 16 streams. With --tune it
   says what `spectool tune` finds for these loads on this machine, which takes a few minutes.

SmolLM2-135M (prompt lookup) on real tritonservers, driven over gRPC streams. The sides of a ratio
take turns and a ratio is the median over rounds: on a shared machine only that is worth anything.
Tokens count while every client asks: at the end of a round, the side whose answers end at different
times would be punished for it. The last line of --json is one document.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.commands import settings, spectool
from tests.serving.test_ports import free_ports
from toolkit.engine.built import BuiltModels
from toolkit.errors import SpectoolError
from toolkit.execute import build
from toolkit.measure.prompts import BUNDLED, load_prompt_sets
from toolkit.plan import make_plan
from toolkit.recipe.load import load_recipe
from toolkit.recipe.schema import Recipe
from toolkit.serving.client import Ask
from toolkit.serving.load.arrivals import Closed
from toolkit.serving.load.figures import Figures
from toolkit.serving.load.session import Load, shown
from toolkit.serving.repository import repository_manifest, write_repository
from toolkit.serving.server import Address, TritonServer
from toolkit.store import Store

Side = tuple["Run", Address]


def main() -> int:
    options = _options()
    recipe = _tuned(options) if options.tune else load_recipe(options.recipe, _overrides(options))
    built = _built(recipe)
    ratios: dict[str, list[float]] = {}

    def compare(what: str, above: Side, below: Side, figure: Callable[[Figures], float]) -> None:
        ratios[what] = in_turns(options.rounds, above, below, figure)

    def run(clients: int, k: int | None) -> Run:
        return Run(built, options, clients=clients, k=k)

    with (
        tempfile.TemporaryDirectory(prefix="bench-serving-") as area,
        served(built, "inprocess", Path(area)) as inprocess,
    ):
        with served(built, "bls", Path(area)) as bls:
            alone = run(1, options.k)
            compare("BLS TPOT / in-process TPOT, 1 stream", (alone, bls), (alone, inprocess), tpot)
        eight, one = (run(8, 0), inprocess), (run(1, 0), inprocess)
        compare("tokens/s of 8 streams / of one, plain", eight, one, throughput)
        for clients in options.loads:
            on, off = (run(clients, None), inprocess), (run(clients, 0), inprocess)
            compare(f"tokens/s with speculation / plain, {clients} stream(s)", on, off, throughput)
    rows = [
        {"what": what, "median": round(median(found), 2), "rounds": [round(r, 2) for r in found]}
        for what, found in ratios.items()
    ]
    width = max(map(len, ratios))
    for row in rows:
        figures = f"{row['median']:>5}   rounds {row['rounds']}"
        print(f"{row['what']:<{width}} {figures}", file=sys.stderr)
    if options.json:
        policy = built.recipe.speculation.draft_length.model_dump()
        print(json.dumps({"recipe": options.recipe, "policy": policy, "ratios": rows}))
    return 0


class Run:
    """One load, of other prompts every time it is put on the same server."""

    def __init__(
        self, built: BuiltModels, options: argparse.Namespace, *, clients: int, k: int | None
    ) -> None:
        sets = load_prompt_sets({name: name for name in options.domains})
        self._texts = shown(sets, built.tokenizer_dir)
        self._options, self._clients, self._k = options, clients, k
        self._turns: Counter[str] = Counter()

    def __call__(self, address: Address) -> Figures:
        count = self._clients * self._options.requests
        start = self._turns[address.grpc] * count
        self._turns[address.grpc] += 1
        texts = [self._texts[(start + i) % len(self._texts)] for i in range(count)]
        asks = [
            Ask(
                text_input=text,
                max_tokens=self._options.max_tokens,
                stream=True,
                num_draft_tokens=self._k,
                return_perf_metrics=True,
                return_num_output_tokens=True,
            )
            for text in texts
        ]
        load = Load(
            address=address.grpc,
            model=None,
            asks=asks,
            arrivals=Closed(self._clients),
            requests=count,
        )
        model, found = load.run()
        if found.error_rate + found.refusal_rate:
            raise SystemExit(f"{model}: {found.messages}")
        print(
            f"  {model:<17} {self._clients:>2} streams, draft "
            f"{'as it says' if self._k is None else self._k}: TPOT p50 "
            f"{found.tpot_ms[50.0]:.1f} ms, {found.steady_throughput:.1f} tokens/s, "
            f"acceptance {found.acceptance_rate:.2f}",
            file=sys.stderr,
        )
        return found


def in_turns(
    rounds: int, above: Side, below: Side, figure: Callable[[Figures], float]
) -> list[float]:
    """above / below of each round; who begins changes from round to round."""
    ratios = []
    for count in range(rounds):
        sides = (above, below) if count % 2 == 0 else (below, above)
        found = {id(side): figure(side[0](side[1])) for side in sides}
        ratios.append(found[id(above)] / found[id(below)])
    return ratios


def tpot(found: Figures) -> float:
    return found.tpot_ms[50.0]


def throughput(found: Figures) -> float:
    return found.steady_throughput


@contextmanager
def served(built: BuiltModels, layout: str, area: Path) -> Iterator[Address]:
    serve = built.recipe.serve.model_copy(update={"layout": layout, "reuse_prefixes": False})
    recipe = built.recipe.model_copy(update={"serve": serve})
    made = BuiltModels(recipe, built.engines, built.tokenizers)
    repository = write_repository(made, area / layout)
    manifest = repository_manifest(repository)
    assert manifest is not None
    address = Address("127.0.0.1", *free_ports(3))
    with TritonServer(repository, list(manifest["models"]), address, timeout_s=600):
        yield address


def _tuned(options: argparse.Namespace) -> Recipe:
    with tempfile.TemporaryDirectory(prefix="bench-serving-tune-") as area:
        batches = ",".join(map(str, options.loads))
        points = ["--k", "1..8", "--batch", batches, "--out", area]
        said = spectool("tune", options.recipe, *points, *settings(_overrides(options)))
        print(said, end="", file=sys.stderr)
        tuned = load_recipe(str(Path(area) / "tuned.yaml"), [])
    if tuned.speculation.drafter == "none":
        raise SystemExit("tune says off at every load: there is no speculation to compare")
    return tuned


def _overrides(options: argparse.Namespace) -> list[str]:
    return [f"engine.max_batch_size={max(16, *options.loads)}", *options.set]


def _built(recipe: Recipe) -> BuiltModels:
    store = Store(None)
    return build(make_plan(recipe, store), store)


def _options() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipe", default="smollm2/135m_ngram")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tune", action="store_true", help="for the loads, before anything else")
    parser.add_argument("--loads", type=numbers, default="1,2,4,8,16")
    parser.add_argument("--k", type=int, default=4, help="draft length of the first ratio")
    parser.add_argument("--domains", type=lambda text: text.split(","), default=list(BUNDLED))
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--requests", type=int, default=4, help="of each client and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpectoolError as error:
        sys.exit(str(error))
