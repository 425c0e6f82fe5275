"""Builds on a hundred nodes and a fleet that serves, simulated: python bench/scale.py

NOTHING HERE RAN ON A CLUSTER. Two simulations with a clock of their own, on measured inputs:

1. Builds. The real scheduler (toolkit/graph/schedule.py and the loop of toolkit/graph/run.py, not a
   model of them) places the steps of 1,000 engines on 100 nodes. Step times are drawn from the
   times that a store's manifests recorded on this machine (--store), scaled to engines of minutes
   by --scale; without records from RECORDED, one such list. Printed: the makespan against the
   critical path and against perfect packing (all work spread over all GPUs without a gap), which
   no scheduler can beat, and the same for a scheduler that takes steps as they come.
2. Serving. Requests arrive by a Poisson process at a fleet of replicas. A replica advances all its
   requests together, one step at a time; how long a step takes and how many tokens it yields come
   from a results.json of `spectool tune --mode trace` (its step-time table and its acceptance
   traces' summary). Printed: goodput, the requests a second whose TPOT stays under the limit, for
   speculation off, at a fixed draft length, and by the schedule that the tuning run chose.

The last line of --json is one document, with "simulated": true.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.commands import spectool
from toolkit.graph.run import Event, run
from toolkit.graph.schedule import Node
from toolkit.graph.step import Graph, Needs, Step
from toolkit.store import Store

# Seconds that the manifests of `spectool build smollm2/135m_draft_target` recorded on two cores:
# SmolLM2-135M as target and its four-layer draft, converted and packed.
RECORDED = {"checkpoints": [7.9, 1.3], "engines": [3.9, 1.4]}


def main() -> int:
    options = _options()
    rng = random.Random(options.seed)
    recorded = recorded_times(options.store)
    steps = many_builds(options.engines, recorded, options.scale, rng)
    builds = [compare_builds(steps, nodes_of(count)) for count in options.nodes]
    result: dict[str, Any] = {"simulated": True, "builds": builds}
    if not options.builds_only:
        measured = Measured(options.results.read_text() if options.results else tune(options))
        result["serving"] = serving(measured, options, rng)
    print(json.dumps(result) if options.json else table(result))
    return 0


# -- 1. builds


def recorded_times(store: Path | None) -> Mapping[str, Sequence[float]]:
    """Kind -> seconds that manifests of this store say."""
    found: dict[str, list[float]] = {kind: [] for kind in RECORDED}
    for entry in Store(store).entries() if store else ():
        if entry["kind"] in found and entry["seconds"]:
            found[entry["kind"]].append(float(entry["seconds"]))
    return {kind: times or RECORDED[kind] for kind, times in found.items()}


def many_builds(
    engines: int, recorded: Mapping[str, Sequence[float]], scale: float, rng: random.Random
) -> list[Step]:
    """Checkpoints with one to six engines each (layouts, sizes), of one to eight ranks.

    A model of twice the size takes twice as long, to convert and to build.
    """
    steps: list[Step] = []
    while sum(step.needs.gpus > 0 for step in steps) < engines:
        number = len(steps)
        ranks = rng.choices([1, 2, 4, 8], weights=[4, 3, 2, 1])[0]
        weight = scale * rng.uniform(0.5, 2.0)
        checkpoint = Step(
            id=f"checkpoint/{number}",
            kind="simulated",
            title=f"convert {number}",
            seconds=rng.choice(recorded["checkpoints"]) * weight,
        )
        steps.append(checkpoint)
        for place in range(rng.randint(1, 6)):
            steps.append(
                Step(
                    id=f"engine/{number}/{place}",
                    kind="simulated",
                    title=f"engine {number}/{place}",
                    inputs=(checkpoint.id,),
                    needs=Needs(gpus=ranks),
                    seconds=rng.choice(recorded["engines"]) * weight * rng.uniform(0.9, 1.1),
                )
            )
    return steps


class SimulatedWorkers:
    """Nodes that do nothing but let time pass, on a clock that jumps from one end to the next."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.now = 0.0
        self._nodes = nodes
        self._ends: list[tuple[float, int, str]] = []
        self._count = 0

    def clock(self) -> float:
        return self.now

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def start(self, step: Step, node: Node) -> None:
        self._count += 1
        heapq.heappush(self._ends, (self.now + step.seconds, self._count, step.id))

    def wait(self) -> Sequence[Event]:
        self.now, _, step = heapq.heappop(self._ends)
        return [Event(step=step)]

    def news(self) -> str:
        return ""

    def stop(self) -> None:
        self._ends.clear()


def nodes_of(count: int) -> list[Node]:
    return [Node(id=f"n{i}", name=f"n{i}", cpus=16, gpus=8) for i in range(count)]


def compare_builds(steps: Sequence[Step], nodes: Sequence[Node]) -> dict[str, Any]:
    """Makespans and bounds, in simulated seconds."""
    graph = Graph(list(steps))
    started = time.process_time()
    longest_first = makespan(graph, nodes)
    decided = time.process_time() - started
    # The same code, told nothing of how long steps take: then they go as they come.
    blind = Graph([replace(step, seconds=0.0) for step in steps])
    real = {step.id: step.seconds for step in steps}
    as_they_come = makespan(blind, nodes, real)
    gpu_seconds = sum(step.needs.gpus * step.seconds for step in steps)
    packed = gpu_seconds / sum(node.gpus for node in nodes)
    bound = max(graph.critical_path, packed)
    return {
        "steps": len(steps),
        "engines": sum(step.needs.gpus > 0 for step in steps),
        "nodes": len(nodes),
        "makespan_s": longest_first,
        "as_they_come_s": as_they_come,
        "critical_path_s": graph.critical_path,
        "perfect_packing_s": packed,
        "over_the_bound": longest_first / bound,
        "as_they_come_over_the_bound": as_they_come / bound,
        "scheduler_seconds": decided,  # measured: what all its decisions took here
    }


def makespan(
    graph: Graph, nodes: Sequence[Node], seconds: Mapping[str, float] | None = None
) -> float:
    """When the last step ends, by the loop that runs real builds."""
    workers = SimulatedWorkers(nodes)
    if seconds:
        start = workers.start
        workers.start = lambda step, node: start(replace(step, seconds=seconds[step.id]), node)
    return max(ran.end for ran in run(graph, workers, title="simulating", clock=workers.clock))


# -- 2. serving


def tune(options: argparse.Namespace) -> str:
    """results.json of a short run on this machine: everything below is drawn from it."""
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as area:
        words = ["tune", options.recipe, "--mode", "trace", "--k", "1..6", "--batch", "1,2,4,8"]
        words += ["--prompts-per-domain", "8", "--max-tokens", "48", "--out", area]
        print(spectool(*words), end="", file=sys.stderr)
        return (Path(area) / "results.json").read_text(encoding="utf-8")


class Measured:
    """Step times and acceptance of a tuning run, by batch size and draft length."""

    def __init__(self, text: str) -> None:
        found = json.loads(text)
        self.recipe = found["recipe"]["name"]
        self.schedule = [tuple(entry) for entry in found["draft_length_schedule"] or []]
        times: dict[tuple[int, int], list[float]] = {}
        for point in found["trace"]["step_times"]:
            times.setdefault((point["batch_size"], point["drafted"]), []).append(point["total_ns"])
        self._times = {place: mean(ns) / 1e9 for place, ns in times.items()}
        self.batches = sorted({batch for batch, _ in times})
        self.drafted = sorted({drafted for _, drafted in times})
        trace = found["trace"]
        self.prefill = {int(b): ns / 1e9 for b, ns in trace["prefill_ns_per_token"].items()}
        one_domain = len({cell["domain"] for cell in trace["summary"]}) == 1
        # Of one k the acceptance is the same at every batch size: it is the texts'.
        self.survival = {
            cell["k"]: [share or 0.0 for share in cell["acceptance_by_position_joint"]]
            for cell in trace["summary"]
            if cell["pooled"] or one_domain
        }

    def step(self, active: int, k: int) -> float:
        """Seconds of a step of `active` requests; linear between what was measured."""
        at = [float(np.interp(k, self.drafted, self._row(batch))) for batch in self.batches]
        return float(np.interp(active, self.batches, at))

    def _row(self, batch: int) -> list[float]:
        return [self._times[batch, drafted] for drafted in self.drafted]

    def tokens(self, k: int, rng: random.Random) -> int:
        """Of one step of one request: one, and as many drafted ones as a draw accepts."""
        draw = rng.random()
        return 1 + sum(draw < survives for survives in self.survival.get(k, [])[:k])

    def draft_len(self, mode: str, active: int) -> int:
        if mode == "off" or not self.schedule:
            return 0
        if mode == "fixed":  # what is best for a lone request, at every load
            return int(self.schedule[0][1])
        return int([k for batch, k in self.schedule if batch <= active or batch == 1][-1])


def serving(
    measured: Measured, options: argparse.Namespace, rng: random.Random
) -> list[dict[str, Any]]:
    """Goodput of each mode at shares of what the fleet can do at most without speculation."""
    most = measured.batches[-1]
    capacity = options.replicas * most / (measured.step(most, 0) * options.output_tokens)
    limit = options.tpot_limit * measured.step(1, 0)
    rows = []
    for share in options.loads:
        arrivals = _arrivals(share * capacity, options.requests, rng)
        for mode in ("off", "fixed", "scheduled"):
            tpots, end = fleet(measured, arrivals, mode, options, random.Random(options.seed))
            good = sum(tpot <= limit for tpot in tpots)
            rows.append(
                {
                    "recipe": measured.recipe,
                    "load": share,
                    "requests_per_s": share * capacity,
                    "speculation": mode,
                    "goodput_per_s": good / end,
                    "within_limit": good / len(tpots),
                    "tpot_p50_ms": median(tpots) * 1e3,
                    "tpot_limit_ms": limit * 1e3,
                }
            )
    return rows


def _arrivals(rate: float, count: int, rng: random.Random) -> list[float]:
    times, now = [], 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        times.append(now)
    return times


def fleet(
    measured: Measured,
    arrivals: Sequence[float],
    mode: str,
    options: argparse.Namespace,
    rng: random.Random,
) -> tuple[list[float], float]:
    """TPOT of every request and when the last one ended; each joins the replica with the fewest."""
    replicas = [_Replica(measured, mode, options, rng) for _ in range(options.replicas)]
    for arrival in arrivals:
        for replica in replicas:
            replica.until(arrival)
        min(replicas, key=lambda replica: replica.load).submit(arrival)
    for replica in replicas:
        replica.until(float("inf"))
    return [t for replica in replicas for t in replica.tpots], max(r.now for r in replicas)


class _Replica:
    """One server: in-flight batching, all requests advance together."""

    def __init__(
        self, measured: Measured, mode: str, options: argparse.Namespace, rng: random.Random
    ) -> None:
        self._measured, self._mode, self._rng = measured, mode, rng
        self._prompt, self._wanted = options.prompt_tokens, options.output_tokens
        self.now = 0.0
        self._waiting: deque[float] = deque()
        self._active: list[tuple[float, int]] = []  # first token at, tokens so far
        self.tpots: list[float] = []

    @property
    def load(self) -> int:
        return len(self._waiting) + len(self._active)

    def submit(self, arrival: float) -> None:
        self._waiting.append(arrival)

    def until(self, end: float) -> None:
        """Steps that begin before `end`."""
        while self.load and self.now < end:
            if not self._active:
                self.now = max(self.now, self._waiting[0])
                if self.now >= end:
                    return
            self._admit()
            self._step()

    def _admit(self) -> None:
        measured, most = self._measured, self._measured.batches[-1]
        fresh = 0
        while self._waiting and self._waiting[0] <= self.now and len(self._active) + fresh < most:
            self._waiting.popleft()
            fresh += 1
        if fresh:  # the others wait while prompts are read
            self.now += measured.prefill[measured.batches[0]] * self._prompt * fresh
            self._active += [(self.now, 1)] * fresh

    def _step(self) -> None:
        active = len(self._active)
        k = self._measured.draft_len(self._mode, active)
        self.now += self._measured.step(active, k)
        still = []
        for first, tokens in self._active:
            total = min(tokens + self._measured.tokens(k, self._rng), self._wanted)
            if total == self._wanted:
                self.tpots.append((self.now - first) / (self._wanted - 1))
            else:
                still.append((first, total))
        self._active = still


# -- what is printed


def table(result: Mapping[str, Any]) -> str:
    lines = ["SIMULATED: the real scheduler on recorded step times; nothing ran on a cluster"]
    for b in result["builds"]:
        lines += [
            f"{b['engines']} engines ({b['steps']} steps) on {b['nodes']} nodes of 8 GPUs",
            f"  critical path        {b['critical_path_s']:8.0f} s",
            f"  perfect packing      {b['perfect_packing_s']:8.0f} s",
            f"  longest way first    {b['makespan_s']:8.0f} s  "
            f"{b['over_the_bound']:.2f}x the larger of the two",
            f"  as steps come        {b['as_they_come_s']:8.0f} s  "
            f"{b['as_they_come_over_the_bound']:.2f}x",
            f"  all its decisions    {b['scheduler_seconds']:8.1f} s of processor time (measured)",
        ]
    for row in result.get("serving", ()):
        if row["speculation"] == "off":
            lines += [
                f"SIMULATED: {row['recipe']}, {row['requests_per_s']:.2f} requests/s "
                f"({row['load']:.0%} of capacity), TPOT limit {row['tpot_limit_ms']:.0f} ms"
            ]
        lines += [
            f"  speculation {row['speculation']:<10} goodput {row['goodput_per_s']:6.2f} /s   "
            f"{row['within_limit']:4.0%} within   TPOT p50 {row['tpot_p50_ms']:6.1f} ms"
        ]
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 25])
    parser.add_argument("--scale", type=float, default=100.0, help="Of the recorded seconds.")
    parser.add_argument("--store", type=Path, help="Take step times from this store's manifests.")
    parser.add_argument("--builds-only", action="store_true")
    parser.add_argument("--results", type=Path, help="results.json of tune --mode trace.")
    parser.add_argument("--recipe", default="smollm2/135m_ngram", help="Tuned without --results.")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.25, 0.5, 0.75, 1.0])
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--tpot-limit", type=float, default=1.5, help="Times plain TPOT, batch 1.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
