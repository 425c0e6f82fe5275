"""Trace mode against the exhaustive grid: python bench/trace.py [--recipe smollm2/135m_ngram]

Both tune the same recipe over the same points, one after the other, each in a process of its own
and from nothing but built engines. Printed are the tokens that were generated, wall times, what
each chose, how far the trace's choice lies above the grid's own choice and above the lowest TPOT of
any of its points, and how many of the grid's points were predicted within 10 %: their speed-ups
(plain decoding and each k meet the same prompts in the same round, so most of what a machine does
to one of them it does to both), and their TPOTs by the clock and undisturbed. Other users of a
shared machine make a run take up to twice as long for seconds or minutes, and the two tunings meet
other weather; undisturbed means that each of the grid's runs is divided by what its steps took over
the quickest tenth of like steps (bench/disturbance.py), and all predictions by one number, their
error at plain decoding. The lowest of nine such medians is the lowest by luck, too: where the trace
chose another length than the grid, or than its lowest, those are measured once more against each
other over the same prompts (measured again). Over all bundled prompts it takes half an hour or
more; with few of them (--prompts-per-domain 8) there is less to save. --out keeps the results, and
--grid DIR/grid.json holds a new trace against a grid that was measured before: then nothing of the
trace may be in the store yet (--store). On a shared machine --repeats 2 measures the same grid
twice and takes each run, a round at one draft length, from where it was quicker; grids given with
--grid count, and costs are those of the first. Each grid is then held against the others in the
trace's place: how well the machine repeats itself. The last line of --json is one document.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.commands import settings, spectool
from bench.disturbance import Run, disturbances
from toolkit.measure.metrics import tpot_ns
from toolkit.measure.prompts import ALL_DOMAINS as ALL
from toolkit.measure.records import RequestRecord
from toolkit.tuning.intervals import Interval, quantile_interval

WITHIN = 0.10

Point = tuple[int, str, int]  # batch size, domain, draft length; 0: plain decoding


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as area:
        out = options.out or Path(area)
        _spectool("build", options)
        # Outputs of an earlier run in the store would flatter the trace: a seed of its own.
        grids = [json.loads(path.read_text()) for path in options.grid]
        seed = grids[0]["settings"]["sampling"]["seed"] if grids else time.time_ns() % 2**31
        trace = _tune(options, "trace", out, seed)
        while len(grids) < options.repeats:
            where = out / f"repeat-{len(grids) + 1}" if grids else out
            grids.append(_tune(options, "grid", where, seed))
        if wrong := _incomparable(trace, grids):
            print(wrong, file=sys.stderr)
            return 1
        result = {**compare(trace, grids), "recipe": options.recipe}
        result["measured_again"] = _again(options, result, out, seed + 1)
    print(json.dumps(result) if options.json else table(result))
    return 0


def compare(trace: dict[str, Any], grids: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Costs side by side, and how good predictions and choices were by the grid's measure."""
    grid = grids[0]
    records = quickest(grids)
    lengths = {_point(c): c["acceptance_length"] for c in grid["summary"] if c["k"]}
    predicted = {_point(c): c for c in trace["trace"]["summary"]}
    drift = [predicted[point]["acceptance_length"] / al - 1 for point, al in lengths.items()]
    expected = {point: c["tpot_p50_ns"] for point, c in predicted.items()}
    chosen = _chosen(trace=trace, predicted=trace["trace"], grid=grid)
    pooled = _pool(domain for _, domain, _ in expected) == ALL
    clock = point_tpots(records, {}, pooled=pooled)
    quiet = point_tpots(records, disturbances(records), pooled=pooled)
    pace = median(expected[point] / ns for point, ns in quiet.items() if not point[2])
    gains = speedups(records, pooled=pooled)
    return {
        "tokens": {"trace": _tokens(trace), "grid": _tokens(grid)},
        "seconds": {"trace": trace["wall_s"], "grid": grid["wall_s"]},
        "grids": len(grids),
        "worst_acceptance_length_error": max(drift, key=abs),
        "chosen": chosen,
        "speedups": _within(
            predicted[point]["speedup"]["value"] / gain - 1 for point, gain in gains.items()
        ),
        "by_the_clock": _judged(clock, expected, chosen),
        "undisturbed": {
            "predictions_divided_by": pace,
            **_judged(quiet, {point: ns / pace for point, ns in expected.items()}, chosen),
        },
        "repeatable": list(_repeatable(grids, pooled=pooled)),
    }


def _repeatable(grids: Sequence[dict[str, Any]], *, pooled: bool) -> Iterator[dict[str, Any]]:
    """Each grid in the trace's place, against each other: how well the machine repeats itself."""
    clocks = [point_tpots(grid["records"], {}, pooled=pooled) for grid in grids]
    for ours, theirs in permutations(range(len(grids)), 2):
        chosen = _chosen(trace=grids[ours], grid=grids[theirs])
        judged = _judged(clocks[theirs], clocks[ours], chosen)
        yield {"grid": ours + 1, "by": theirs + 1, **judged}


def quickest(grids: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of each run from the grid where it took the least time."""
    least: dict[tuple[str, int], tuple[int, int]] = {}  # run -> ns, grid
    for place, grid in enumerate(grids):
        for run in grid["runs"]:
            key, taken = (run["round"], run["k"]), (run["wall_ns"], place)
            least[key] = min(least.get(key, taken), taken)
    return [
        record
        for place, grid in enumerate(grids)
        for record in grid["records"]
        if least[record["round"], record["k"]][1] == place
    ]


def _incomparable(trace: dict[str, Any], grids: Sequence[dict[str, Any]]) -> str:
    """Why they cannot be held against each other; empty where they can."""
    if trace["trace"]["outputs_cached"]:
        return "the trace found its outputs in the store, which flatters it: name another --store"
    names = ("k", "max_tokens", "sampling", "threads", "machine", "drafter", "engines")
    for grid in grids:
        differ = [name for name in names if trace["settings"][name] != grid["settings"][name]]
        if differ:
            return f"the grid was measured with another {', '.join(differ)}"
    return ""


def _again(
    options: argparse.Namespace, result: dict[str, Any], out: Path, seed: int
) -> list[dict[str, Any]]:
    """The trace's choice over the grid's and the grid's lowest, where they are not the same."""
    found = []
    for chosen, judged in zip(result["chosen"], result["by_the_clock"]["choices"], strict=True):
        ours, batch = chosen["trace"], chosen["batch"]
        others = {chosen["grid"], judged["fastest"]} - {ours}
        if not others:
            continue
        lengths = ",".join(str(k) for k in sorted({ours, *others} - {0}))
        run = _tune(options, "grid", out / f"again-{batch}", seed, k=lengths, batch=str(batch))
        tpots = pooled_tpots(run["records"])
        found += [
            {
                "batch": batch,
                "trace": ours,
                "other": other,
                "is": "the grid's" if other == chosen["grid"] else "the lowest",
                "above": median(tpots[ours].values()) / median(tpots[other].values()) - 1,
                "paired": asdict(paired_ratio(tpots[ours], tpots[other])),
            }
            for other in sorted(others)
        ]
    return found


Request = tuple[str, str, str]  # domain, round, prompt


def pooled_tpots(records: Sequence[dict[str, Any]]) -> dict[int, dict[Request, float]]:
    """TPOT of every request by draft length."""
    found: dict[int, dict[Request, float]] = {}
    for record in records:
        if record["output_tokens"] > 1:
            found.setdefault(record["k"], {})[_request(record)] = tpot_ns(RequestRecord(**record))
    return found


def _request(record: dict[str, Any]) -> Request:
    return record["domain"], record["round"], record["prompt_id"]


def paired_ratio(ours: Mapping[Request, float], theirs: Mapping[Request, float]) -> Interval:
    """The middle of the ratios of the same requests, with its 95 % interval."""
    domains: dict[str, dict[str, list[float]]] = {}
    for request in sorted(ours.keys() & theirs.keys()):
        rounds = domains.setdefault(request[0], {})
        rounds.setdefault(request[1], []).append(ours[request] / theirs[request])
    values = [list(rounds.values()) for rounds in domains.values()]
    found = quantile_interval(values, 0.5, np.random.default_rng(0))
    assert found is not None, "at least two rounds"
    return found


def point_tpots(
    records: Sequence[dict[str, Any]], slower: Mapping[Run, float], *, pooled: bool
) -> dict[Point, float]:
    """p50 TPOT of every point, each run without its disturbance where that is given."""

    def tpot(record: dict[str, Any]) -> float:
        by = slower.get((record["round"], record["k"]), 1.0)
        return tpot_ns(RequestRecord(**record)) / by

    return _middles([r for r in records if r["output_tokens"] > 1], tpot, pooled=pooled)


def speedups(records: Sequence[dict[str, Any]], *, pooled: bool) -> dict[Point, float]:
    """Of every point but plain decoding: the middle over its requests, each against itself."""
    tpots = pooled_tpots(records)

    def gain(record: dict[str, Any]) -> float:
        request = _request(record)
        return tpots[0][request] / tpots[record["k"]][request]

    drafted = [
        r for r in records if r["k"] and _request(r) in tpots[0] and _request(r) in tpots[r["k"]]
    ]
    return _middles(drafted, gain, pooled=pooled)


def _middles(
    records: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float], *, pooled: bool
) -> dict[Point, float]:
    """The median of what these requests have at every point: of their domain, and of all."""
    found: dict[Point, list[float]] = {}
    for record in records:
        batch, domain, k = _point(record)
        for name in (domain, ALL) if pooled else (domain,):
            found.setdefault((batch, name, k), []).append(value(record))
    return {point: median(values) for point, values in found.items()}


def _chosen(**runs: dict[str, Any]) -> list[dict[str, int]]:
    """At each batch size, over all domains: the draft length that each of these chose."""
    by_batch: dict[int, dict[str, int]] = {}
    for name, run in runs.items():
        for choice in run["choices"]:
            if choice["domain"] == _pool(each["domain"] for each in run["choices"]):
                by_batch.setdefault(choice["batch_size"], {})[name] = choice["k"]
    return [{"batch": batch, **found} for batch, found in sorted(by_batch.items())]


def _pool(domains: Iterable[str]) -> str:
    """What stands for all of them: one domain has no pool."""
    found = set(domains)
    return ALL if ALL in found else min(found)


def _judged(
    tpots: Mapping[Point, float], expected: Mapping[Point, float], chosen: Sequence[dict[str, int]]
) -> dict[str, Any]:
    """What these TPOTs say of predictions and choices."""
    above = []
    pool = _pool(domain for _, domain, _ in tpots)
    for choice in chosen:
        here = {k: ns for (b, name, k), ns in tpots.items() if (b, name) == (choice["batch"], pool)}
        fastest = min(here, key=lambda k: here[k])
        ours = here[choice["trace"]]
        above.append(
            {
                "batch": choice["batch"],
                "fastest": fastest,
                "above_grid": ours / here[choice["grid"]] - 1,
                "above_fastest": ours / here[fastest] - 1,
            }
        )
    errors = (expected[point] / ns - 1 for point, ns in tpots.items())
    return {**_within(errors), "choices": above}


def _within(errors: Iterable[float]) -> dict[str, Any]:
    found = list(errors)
    return {
        "points": len(found),
        "within_10_percent": sum(abs(error) <= WITHIN for error in found) / len(found),
        "worst_error": max(found, key=abs),
    }


def _point(cell: dict[str, Any]) -> Point:
    return cell["batch_size"], cell["domain"], cell["k"]


def _tokens(run: dict[str, Any]) -> int:
    confirmed = sum(each["emitted_tokens"] for each in run["runs"])
    trace = run.get("trace", {})
    return int(confirmed + trace.get("generated_tokens", 0) + trace.get("step_time_tokens", 0))


def _tune(
    options: argparse.Namespace, mode: str, out: Path, seed: int, **where: str
) -> dict[str, Any]:
    k, batch = where.get("k", options.k), where.get("batch", options.batch)
    points = ["--k", k, "--batch", batch, "--max-tokens", options.max_tokens]
    prompts = ["--prompts-per-domain", options.prompts_per_domain, "--seed", str(seed)]
    sampling = ["--temperature", options.temperature]
    threads = ["--threads", options.threads] if options.threads else []
    started = time.monotonic()
    _spectool(
        "tune", options, "--mode", mode, "--out", str(out / mode),
        *points, *prompts, *sampling, *threads,
    )  # fmt: skip
    wall = round(time.monotonic() - started, 1)
    found = {**json.loads((out / mode / "results.json").read_text()), "wall_s": wall}
    (out / f"{mode}.json").write_text(json.dumps(found))
    return found


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
    for c in result["chosen"]:
        lines.append(
            f"batch {c['batch']}: trace chose k = {c['trace']} (predicted {c['predicted']}), "
            f"grid {c['grid']}"
        )
    lines.append(f"paired in rounds: {_said(result['speedups'], 'speed-ups')}")
    for name in ("by_the_clock", "undisturbed"):
        judged = result[name]
        of = f", each run the quickest of {result['grids']}" if result["grids"] > 1 else ""
        lines.append(f"{name.replace('_', ' ')}{of}: {_said(judged, 'TPOTs')}; the trace's choices")
        lines += [
            f"  batch {c['batch']}: {c['above_grid']:+.1%} from the grid's, "
            f"{c['above_fastest']:+.1%} from the lowest (k = {c['fastest']})"
            for c in judged["choices"]
        ]
    for r in result["repeatable"]:
        above = ", ".join(f"{c['above_fastest']:+.1%}" for c in r["choices"])
        lines.append(
            f"grid {r['grid']} in the trace's place, by grid {r['by']}: {_said(r, 'TPOTs')}; "
            f"its choices {above} from the lowest"
        )
    for a in result["measured_again"]:
        paired = a["paired"]
        lines.append(
            f"measured again, batch {a['batch']}: k = {a['trace']} {a['above']:+.1%} from "
            f"{a['is']}, k = {a['other']}; request by request "
            f"{paired['value'] - 1:+.1%} ({paired['low'] - 1:+.1%} to {paired['high'] - 1:+.1%})"
        )
    lines.append(f"worst acceptance_length error {result['worst_acceptance_length_error']:+.1%}")
    return "\n".join(lines)


def _said(found: dict[str, Any], what: str) -> str:
    share, worst = found["within_10_percent"], found["worst_error"]
    return (
        f"{share:.0%} of {found['points']} {what} predicted within 10 %, the worst {worst:+.1%} off"
    )


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
    parser.add_argument("--grid", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--repeats", type=int, default=1, help="of the grid")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
