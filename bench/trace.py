"""Trace mode against the exhaustive grid: python bench/trace.py [--recipe smollm2/135m_ngram]

Both tune the same recipe over the same points, one after the other, each in a process of its own
and from nothing but built engines. Printed are the tokens that were generated, wall times, what
each chose, how far the trace's choice lies above the grid's own choice (made of paired rounds) and
above the lowest TPOT of any of its points, and how many of the grid's points were predicted within
10 %. Over all bundled prompts it takes half an hour; with few of them
(--prompts-per-domain 8) there is less to save. --out keeps both results. The last line of --json is
one document.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.commands import settings, spectool

WITHIN = 0.10


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as area:
        out = options.out or Path(area)
        _spectool("build", options)
        found = {mode: _tune(options, mode, out / mode) for mode in ("trace", "grid")}
    result = {**compare(found["trace"], found["grid"]), "recipe": options.recipe}
    print(json.dumps(result) if options.json else table(result))
    return 0


def compare(trace: dict[str, Any], grid: dict[str, Any]) -> dict[str, Any]:
    """Costs side by side, and how good predictions and choices were by the grid's measure."""
    tpots = {_point(c): c["tpot_p50_ns"] for c in grid["summary"]}
    lengths = {_point(c): c["acceptance_length"] for c in grid["summary"] if c["k"]}
    predicted = {_point(c): c for c in trace["trace"]["summary"]}
    errors = {point: predicted[point]["tpot_p50_ns"] / ns - 1 for point, ns in tpots.items()}
    # The two runs are minutes apart: plain decoding, which needs no trace, says how much slower or
    # faster the machine was in the second.
    pace = 1 + median(error for (_, _, k), error in errors.items() if not k)
    steady = [(1 + error) / pace - 1 for error in errors.values()]
    drift = [predicted[point]["acceptance_length"] / al - 1 for point, al in lengths.items()]
    return {
        "tokens": {"trace": _tokens(trace), "grid": _tokens(grid)},
        "seconds": {"trace": trace["wall_s"], "grid": grid["wall_s"]},
        "choices": [
            _choice(batch, tpots, trace, grid) for batch in sorted({batch for batch, _, _ in tpots})
        ],
        "tpot_within_10_percent": _share(errors.values()),
        "worst_tpot_error": max(errors.values(), key=abs),
        "drift": pace - 1,
        "tpot_within_10_percent_without_drift": _share(steady),
        "worst_acceptance_length_error": max(drift, key=abs),
    }


def _share(errors: Iterable[float]) -> float:
    found = list(errors)
    return sum(abs(error) <= WITHIN for error in found) / len(found)


def _choice(
    batch: int, tpots: dict[Any, float], trace: dict[str, Any], grid: dict[str, Any]
) -> dict[str, Any]:
    pool = "all" if any(domain == "all" for _, domain, _ in tpots) else next(iter(tpots))[1]
    here = {k: ns for (b, domain, k), ns in tpots.items() if (b, domain) == (batch, pool)}
    chosen = {
        name: next(
            c["k"] for c in run["choices"] if (c["batch_size"], c["domain"]) == (batch, pool)
        )
        for name, run in (("trace", trace), ("predicted", trace["trace"]), ("grid", grid))
    }
    best = min(here, key=lambda k: here[k])
    return {
        "batch": batch,
        **chosen,
        "fastest_in_grid": best,
        "tpot_above_grid": here[chosen["trace"]] / here[chosen["grid"]] - 1,
        "tpot_above_fastest": here[chosen["trace"]] / here[best] - 1,
    }


def _point(cell: dict[str, Any]) -> tuple[int, str, int]:
    return cell["batch_size"], cell["domain"], cell["k"]


def _tokens(run: dict[str, Any]) -> int:
    confirmed = sum(each["emitted_tokens"] for each in run["runs"])
    trace = run.get("trace", {})
    return int(confirmed + trace.get("generated_tokens", 0) + trace.get("step_time_tokens", 0))


def _tune(options: argparse.Namespace, mode: str, out: Path) -> dict[str, Any]:
    # Outputs of an earlier run in the store would flatter the trace: a seed of its own.
    seed = str(time.time_ns() % 2**31)
    points = ["--k", options.k, "--batch", options.batch, "--max-tokens", options.max_tokens]
    prompts = ["--prompts-per-domain", options.prompts_per_domain, "--seed", seed]
    sampling = ["--temperature", options.temperature]
    threads = ["--threads", options.threads] if options.threads else []
    started = time.monotonic()
    _spectool(
        "tune", options, "--mode", mode, "--out", str(out), *points, *prompts, *sampling, *threads
    )
    wall = round(time.monotonic() - started, 1)
    return {**json.loads((out / "results.json").read_text()), "wall_s": wall}


def _spectool(verb: str, options: argparse.Namespace, *more: str) -> None:
    where = ["--store", options.store] if options.store else []
    said = spectool(verb, options.recipe, *more, *settings(options.set), *where)
    print(said, end="", file=sys.stderr)


def table(result: dict[str, Any]) -> str:
    """The comparison for people."""
    lines = []
    for what in ("tokens", "seconds"):
        trace, grid = result[what]["trace"], result[what]["grid"]
        lines.append(f"{what:<10}trace {trace:>9}   grid {grid:>9}   {grid / trace:5.1f} times")
    for c in result["choices"]:
        lines.append(
            f"batch {c['batch']}: trace chose k = {c['trace']} (predicted {c['predicted']}), grid "
            f"{c['grid']}, lowest TPOT at {c['fastest_in_grid']}; TPOT {c['tpot_above_grid']:+.1%} "
            f"from the grid's choice, {c['tpot_above_fastest']:+.1%} from the lowest"
        )
    lines.append(f"TPOT predicted within 10 %: {result['tpot_within_10_percent']:.0%} of points")
    lines.append(
        f"after taking out the machine's drift between the two runs ({result['drift']:+.0%}): "
        f"{result['tpot_within_10_percent_without_drift']:.0%}"
    )
    lines.append(f"worst TPOT error {result['worst_tpot_error']:+.1%}")
    lines.append(f"worst acceptance_length error {result['worst_acceptance_length_error']:+.1%}")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="smollm2/135m_ngram")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--store", default=None)
    parser.add_argument("--k", default="1..8")
    parser.add_argument("--batch", default="1,2,4,8")
    parser.add_argument("--max-tokens", default="64")
    parser.add_argument("--prompts-per-domain", default="24")
    parser.add_argument("--temperature", default="0")
    parser.add_argument("--threads", default=None)
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
