"""Draft lengths that nobody measured, from the longest and the shortest that were.

A deployment must be started anew for every draft length, so few are measured. What the longest
draft met tells which drafts of every length would have stood, and steps of two lengths tell what
those in between take; together they predict as a trace and a table of step times do. Where such a
length promises more than the best that was measured it is worth a start. Nothing here decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.measure.metrics import conditional_acceptance_by_position
from toolkit.measure.step_times import StepTime, StepTimes
from toolkit.measure.trace_records import trace_of
from toolkit.recipe.objective import Objective
from toolkit.speculation.draft_length import Fixed
from toolkit.tuning.grid import PLAIN, Grid, Round
from toolkit.tuning.predict import Predictor, Traces
from toolkit.tuning.session import NS_PER_MS
from toolkit.tuning.summary import Cell, Rounds

WORTH = 0.03  # of the best measured TPOT: less is not worth a start


@dataclass(frozen=True)
class Promise:
    """A draft length that was not measured, at one batch size over all prompts."""

    batch_size: int
    k: int
    tpot_ns: float
    best_k: int  # of those that were measured; 0: plain decoding
    best_tpot_ns: float

    def __str__(self) -> str:
        less = 1 - self.tpot_ns / self.best_tpot_ns
        best = f"k = {self.best_k}" if self.best_k else "plain decoding"
        return (
            f"batch {self.batch_size}: k = {self.k}, which was not measured, would take about "
            f"{self.tpot_ns / NS_PER_MS:.2f} ms a token, {less:.0%} less than {best}, by the "
            "lengths on both sides of it"
        )


def promises(
    grid: Grid, measured: Rounds, cells: Sequence[Cell], max_tokens: int, objective: Objective
) -> list[Promise]:
    """The best length in between for every batch size where it promises enough."""
    found = []
    for batch in sorted(grid.batches):
        here = {c.k: c for c in cells if c.batch_size == batch and c.pooled and c.tpot_p50_ns}
        guesses = between(grid, measured, here, max_tokens, objective)
        if not guesses:
            continue
        best = min(here.values(), key=_tpot)
        k = min(guesses, key=lambda length: guesses[length])
        if guesses[k] < (1 - WORTH) * _tpot(best):
            found.append(Promise(batch, k, guesses[k], best.k, _tpot(best)))
    return found


def between(
    grid: Grid,
    measured: Rounds,
    cells: Mapping[int, Cell],  # by draft length, of one batch size over all prompts
    max_tokens: int,
    objective: Objective,
) -> dict[int, float]:
    """Median TPOT, in nanoseconds, of the lengths between two measured ones with drafts."""
    known = sorted(k for k, cell in cells.items() if k and cell.step_p50_ns)
    lengths = range(known[0], known[-1] + 1) if known else range(0)
    if len(lengths) == len(known) or not cells.get(PLAIN):
        return {}
    batch = cells[PLAIN].batch_size
    rounds = [r for r in grid.rounds() if r.batch_size == batch and r.key in measured]
    if not rounds:
        return {}
    predictor = Predictor(
        _traces(rounds, measured, known[-1]),
        _step_times([cells[PLAIN], *(cells[k] for k in known)]),
        max_tokens=max_tokens,
        objective=objective,
        seed=grid.seed,
    )
    predicted = {k: predictor.tpot_p50_ns(rounds, Fixed(k)) for k in lengths}
    # By how much the measured ones were missed lies on a line, too.
    missed = [_tpot(cells[k]) / predicted[k] for k in known]
    return {k: predicted[k] * float(np.interp(k, known, missed)) for k in lengths if k not in known}


def _traces(rounds: Sequence[Round], measured: Rounds, longest: int) -> Traces:
    records = [
        record
        for round in rounds
        for run in measured[round.key]
        if run.k == longest
        for record in run.requests
    ]
    last = conditional_acceptance_by_position(records, longest)[-1]
    last = 0.0 if math.isnan(last) else last  # no draft came so far
    return {(record.domain, record.prompt_id): trace_of(record, last) for record in records}


def _step_times(cells: Sequence[Cell]) -> StepTimes:
    """Of one batch size; a served step does not tell drafting from verifying."""
    batch = cells[0].batch_size
    points = [
        StepTime(
            batch_size=batch,
            drafted=cell.k,
            context=0,
            samples=cell.verify_steps,
            verify_ns=ns,
            draft_ns=0.0,
            overhead_ns=0.0,
            total_ns=ns,
            spread=0.0,
        )
        for cell in cells
        if (ns := cell.step_p50_ns)
    ]
    return StepTimes(tuple(points), {batch: 0.0}, {batch: 0.0})


def _tpot(cell: Cell) -> float:
    return cell.tpot_p50_ns or float("inf")
