"""How long a step takes, by what it reads: the table, and what lies between its points.

A step's time follows the tokens that it verifies, however they are spread over its sequences (a
batch in which some draft and some do not costs what its sum costs), its longest draft where a model
drafts, and its context. An engine also pays whenever the number of tokens is another than in the
step before, which a batch with mixed drafts does again and again (a tenth of a step on the embedded
engine).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.integer[Any] | np.floating[Any]]


@dataclass(frozen=True)
class StepTime:
    """Nanoseconds of one step of `batch_size` requests, each with `drafted` tokens."""

    batch_size: int
    drafted: int
    context: int  # tokens of a request, in the mean
    samples: int
    verify_ns: float  # the target's forward pass
    draft_ns: float
    overhead_ns: float  # choosing tokens, counting, rolling back
    total_ns: float
    spread: float  # between the two quickest visits, of the quicker one's time


@dataclass(frozen=True)
class StepTimes:
    """The table, and what lies between its points."""

    points: tuple[StepTime, ...]
    prefill_ns: Mapping[int, float]  # batch size -> of one prompt token
    # batch size -> more for a step whose number of tokens is not that of the step before
    change_ns: Mapping[int, float]
    emitted_tokens: int = 0  # it took to measure

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepTimes:
        def by_batch(name: str) -> dict[int, float]:
            return {int(batch): float(ns) for batch, ns in data[name].items()}

        points = tuple(StepTime(**point) for point in data["points"])
        emitted = int(data["emitted_tokens"])
        return cls(points, by_batch("prefill_ns"), by_batch("change_ns"), emitted)

    def drafting_as(self, other: StepTimes) -> StepTimes:
        """This table with another drafter's draft times: verifying does not depend on who drafts.

        `other` has two draft lengths at least, at one context or more, for every batch size.
        """

        def swapped(point: StepTime) -> StepTime:
            here = [p for p in other.points if p.batch_size == point.batch_size]
            tokens = np.array([point.batch_size * (1.0 + point.drafted)])
            context = np.array([float(point.context)])
            draft = float(_between(here, _drafting, point.batch_size, tokens, context)[0])
            draft = draft if point.drafted else 0.0
            return replace(point, draft_ns=draft, total_ns=_reading(point) + draft)

        emitted = self.emitted_tokens + other.emitted_tokens
        points = tuple(map(swapped, self.points))
        return replace(self, points=points, emitted_tokens=emitted)

    def at(self, batch: int, drafted: float, context: float) -> float:
        """Nanoseconds of a step in which every request drafts the same, as before it."""
        [ns] = self._steady(batch, np.full((1, batch), float(drafted)), np.array([float(context)]))
        return float(ns)

    def steps(
        self,
        batch: int,
        drafted: Counts,  # [S, batch] tokens that each request drafts in each step
        context: Floats,  # [S] tokens of a request, in the mean
        passes: Counts | None = None,  # [S, batch] that drafting takes; None: one for each token
    ) -> Floats:  # [S] nanoseconds
        """One after the other, the first of them after a prefill, which had another shape."""
        changed = np.diff(drafted.sum(axis=1), prepend=-1) != 0
        steady = self._steady(batch, drafted, context, passes)
        total: Floats = steady + changed * self.change_ns[batch]
        return total

    def _steady(
        self, batch: int, drafted: Counts, context: Floats, passes: Counts | None = None
    ) -> Floats:
        """Linear between numbers of tokens and along the context."""
        passes = drafted if passes is None else passes
        here = [point for point in self.points if point.batch_size == batch]
        reading = _between(here, _reading, batch, batch + drafted.sum(axis=1), context)
        # Who drafts nothing waits for those who do.
        drafting = _between(here, _drafting, batch, batch * (1 + passes.max(axis=1)), context)
        total: Floats = reading + drafting
        return total

    def draft_share(self, batch: int, drafted: float, context: float) -> float:
        """Of a step's time, how much goes to drafting."""
        here = [point for point in self.points if point.batch_size == batch]
        tokens, places = np.array([batch * (1 + drafted)]), np.array([float(context)])
        drafting = float(_between(here, _drafting, batch, tokens, places)[0])
        return drafting / self.at(batch, drafted, context)


def _reading(point: StepTime) -> float:
    """Everything but drafting, so that parts add up to what was measured."""
    return point.total_ns - point.draft_ns


def _drafting(point: StepTime) -> float:
    return point.draft_ns


def _between(
    points: Sequence[StepTime],
    part: Callable[[StepTime], float],
    batch: int,
    tokens: Floats,  # [S]
    context: Floats,  # [S]
) -> Floats:  # [S]
    """Every draft length has a line along the context; between lengths lines are mixed."""
    by_length: dict[int, list[StepTime]] = {}
    for point in points:
        by_length.setdefault(point.drafted, []).append(point)
    lengths = sorted(by_length)
    lines = [_line(by_length[length], part) for length in lengths]
    measured = [batch * (1 + length) for length in lengths]
    start, slope = (np.interp(tokens, measured, values) for values in zip(*lines, strict=True))
    mixed: Floats = start + slope * context
    return mixed


def _line(points: Sequence[StepTime], part: Callable[[StepTime], float]) -> tuple[float, float]:
    """(at no context, per token) through the shortest and the longest.

    It never falls and never begins below nothing, however noisy the two were.
    """
    ordered = sorted(points, key=lambda point: point.context)
    near, far = ordered[0], ordered[-1]
    middle = (part(near) + part(far)) / 2
    if far.context == near.context:
        return middle, 0.0
    halfway = (near.context + far.context) / 2
    slope = max(0.0, (part(far) - part(near)) / (far.context - near.context))
    slope = min(slope, middle / halfway)
    return middle - slope * halfway, slope
