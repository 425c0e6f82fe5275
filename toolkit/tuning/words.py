"""The verdict in plain words: up to where speculation pays, and what ends it there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from toolkit.measure.metrics import ratio
from toolkit.tuning.choose import Choice, overall, value
from toolkit.tuning.summary import Cell

COSTLY = 1.5  # times a plain step: verifying is no longer nearly free
FEW = 1.5  # tokens a step: little is accepted


@dataclass(frozen=True)
class OffPoint:
    """Between which measured batch sizes speculation stops paying."""

    last_on: Choice
    first_off: Choice

    @property
    def about(self) -> int:
        """Where the gain crosses 1, on a line over the logarithm of the batch size.

        It lies between the two measured sizes, the last of which is surely no place for it.
        """
        low, high = self.last_on.batch_size, self.first_off.batch_size
        gained, lost = math.log(value(self.last_on.gain)), math.log(value(self.first_off.gain))
        if lost >= 0:  # not surely slower, only not surely faster
            return low
        part = gained / (gained - lost)
        crossing = math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
        return max(low, min(high - 1, math.floor(crossing)))


def off_point(choices: Sequence[Choice]) -> OffPoint | None:
    """Of all prompts together; None where it pays everywhere, nowhere or by turns."""
    decided = sorted(
        (c for c in overall(choices) if c.verdict != "undecided"), key=lambda c: c.batch_size
    )
    for before, after in pairwise(decided):
        if before.verdict == "on" and after.verdict == "off":
            return OffPoint(before, after)
    return None


def in_words(cells: Sequence[Cell], choices: Sequence[Choice]) -> str:
    """One or two sentences; empty where nothing is decided."""
    decided = [c for c in overall(choices) if c.verdict != "undecided"]
    if not decided:
        return ""
    on = [choice for choice in decided if choice.verdict == "on"]
    point = off_point(choices)
    if not on:
        least = min(decided, key=lambda choice: choice.batch_size)
        return f"Speculation does not pay at any batch size measured: {cause(cells, least)}."
    if point is None:
        largest = max(choice.batch_size for choice in on)
        return f"Speculation pays up to batch {largest}, the largest that was measured."
    between = point.first_off.batch_size - point.last_on.batch_size > 1
    about = f" (by a line through both, up to about {point.about})" if between else ""
    return (
        f"Speculation pays up to batch {point.last_on.batch_size} and not at batch "
        f"{point.first_off.batch_size}{about}: {cause(cells, point.first_off)}."
    )


def cause(cells: Sequence[Cell], choice: Choice) -> str:
    """What a step costs beside what it brings."""
    if choice.note:
        return choice.note
    best, cost = choice.best, step_cost(cells, choice.best)
    length = best.acceptance_length
    if cost is None or length is None:
        return "there are no steps to compare"
    numbers = (
        f"a step of k = {best.k} takes {cost:.2f}x a plain step and brings {length:.2f} tokens"
    )
    if length < FEW:
        return f"too little is accepted; {numbers}"
    if cost > COSTLY:
        return f"verification is compute-bound; {numbers}"
    return numbers


def step_cost(cells: Sequence[Cell], cell: Cell) -> float | None:
    """A step with drafts over a plain one, of the same batch size and domain."""
    plain = next(
        (
            c
            for c in cells
            if c.plain and (c.batch_size, c.domain) == (cell.batch_size, cell.domain)
        ),
        None,
    )
    if plain is None or plain.step_p50_ns is None or cell.step_p50_ns is None:
        return None
    return ratio(cell.step_p50_ns, plain.step_p50_ns)
