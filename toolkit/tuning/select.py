"""Ranking drafts on the target's own outputs: no candidate generates a token.

Each is traced over the same texts and timed for its drafts alone; verifying is timed once, since
it does not depend on who drafts. The rest is the prediction that `tune --mode trace` makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from toolkit.measure.metrics import ratio
from toolkit.measure.step_times import StepTimes
from toolkit.measure.trace_rounds import tokens_per_step
from toolkit.recipe.objective import Objective
from toolkit.speculation.draft_length import DraftLengthPolicy, Fixed
from toolkit.tuning.grid import PLAIN, Grid
from toolkit.tuning.intervals import Interval
from toolkit.tuning.predict import Predictor, Traces
from toolkit.tuning.summary import Cell

STEPS = 60  # of bisection: beyond the precision of a float


@dataclass(frozen=True)
class Memory:
    """What a candidate needs besides the target, in bytes."""

    weights: int
    kv_per_token: int  # of one sequence


@dataclass(frozen=True)
class Point:
    """One candidate at one batch size, at its best draft length, over all prompts."""

    batch_size: int
    k: int
    tpot_ns: float
    plain_tpot_ns: float
    speedup: Interval | None
    acceptance_rate: float | None
    acceptance_length: float | None
    cost_ratio: float  # drafting one token over a plain step of the target
    draft_share: float  # of a step at this k
    # Per draft token, the same at every position: what it takes to be no slower than plain...
    break_even_acceptance: float | None  # None: not even drafts that always stand would do
    ceiling_speedup: float  # ...and what drafts that always stand would bring

    @property
    def gain(self) -> float:
        """Plain TPOT over predicted TPOT, both from steps of the same target engine.

        A head has a target engine of its own, which was timed at another minute than the others'
        target: its TPOT alone cannot be held against theirs.
        """
        return self.plain_tpot_ns / self.tpot_ns


@dataclass(frozen=True)
class Assessed:
    """One candidate; points in the order of batch sizes."""

    name: str
    drafter: str
    memory: Memory
    points: tuple[Point, ...]

    @property
    def gain(self) -> float:
        """Geometric mean over the batch sizes of plain TPOT over predicted TPOT."""
        logs = [log(point.gain) for point in self.points]
        return exp(sum(logs) / len(logs))

    def to_json(self) -> dict[str, Any]:
        from dataclasses import asdict

        return {**asdict(self), "mean_speedup": self.gain}


def assess(
    name: str, drafter: str, traces: Traces, times: StepTimes, grid: Grid, memory: Memory,
    *, max_tokens: int, objective: Objective,
) -> Assessed:  # fmt: skip
    """The candidate at every batch size of the grid."""
    predictor = Predictor(traces, times, max_tokens=max_tokens, objective=objective, seed=grid.seed)
    policies: dict[int, DraftLengthPolicy] = {k: Fixed(k) for k in (PLAIN, *grid.ks)}
    cells = [cell for cell in predictor.cells(grid.rounds(), policies) if cell.pooled]
    context = _context(grid, max_tokens)
    points = tuple(
        _point([c for c in cells if c.batch_size == batch], times, context)
        for batch in sorted(grid.batches)
    )
    return Assessed(name, drafter, memory, points)


def ranked(found: Sequence[Assessed]) -> list[Assessed]:
    """Fastest first, by the mean over the batch sizes."""
    return sorted(found, key=lambda candidate: -candidate.gain)


def at_batch(found: Sequence[Assessed], batch: int) -> list[tuple[Assessed, Point]]:
    """The largest gain first, at one batch size."""
    pairs = [(c, point) for c in found for point in c.points if point.batch_size == batch]
    return sorted(pairs, key=lambda pair: -pair[1].gain)


def _context(grid: Grid, max_tokens: int) -> float:
    lengths = [len(p.tokens) for prompts in grid.domains.values() for p in prompts]
    return sum(lengths) / len(lengths) + max_tokens / 2


def _point(cells: Sequence[Cell], times: StepTimes, context: float) -> Point:
    plain = next(cell for cell in cells if cell.plain)
    best = min(
        (cell for cell in cells if not cell.plain and cell.tpot_p50_ns is not None),
        key=lambda cell: cell.tpot_p50_ns or 0.0,
    )
    batch, k = best.batch_size, best.k
    alone, together = times.at(batch, 0, context), times.at(batch, k, context)
    share = times.draft_share(batch, k, context)
    return Point(
        batch_size=batch,
        k=k,
        tpot_ns=best.tpot_p50_ns or 0.0,
        plain_tpot_ns=plain.tpot_p50_ns or 0.0,
        speedup=best.speedup,
        acceptance_rate=best.acceptance_rate,
        acceptance_length=best.acceptance_length,
        cost_ratio=ratio(share * together / k, alone),
        draft_share=share,
        break_even_acceptance=break_even(together / alone, k),
        ceiling_speedup=(k + 1) * alone / together,
    )


def break_even(cost: float, k: int) -> float | None:
    """The acceptance a with (1 - a^(k + 1)) / (1 - a) = cost: as many tokens as a step costs.

    `cost` is a step with k drafts over a plain one; None above k + 1.
    """
    if cost <= 1.0:
        return 0.0
    if cost > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step(middle, k) < cost else (low, middle)
    return high


def document(found: Sequence[Assessed], settings: Mapping[str, Any]) -> dict[str, Any]:
    """For --json; the best first."""
    return {
        "schema": "spectool.select/1",
        "settings": dict(settings),
        "candidates": [each.to_json() for each in ranked(found)],
    }
