"""Draft lengths for one step of a batch that give the most useful tokens per second.

A draft of d tokens, each accepted with chance a after those before it, emits 1 + a + ... + a^d
tokens. So the next draft token is best spent on the request with the largest a^(d+1): requests
whose drafts stand get long ones, the others none. How many tokens to spend in all is decided by the
time of the step, which a table of measured steps gives. Fairness: a step that drafts takes longer
for all, also for those that gain nothing by it, and none of them may get slower than a part of what
it would have plainly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.interfaces import SpeculationStats

# A request that is not known yet is tried with good hopes: being wrong costs a step or two.
_HOPE, _HOPE_WEIGHT = 0.7, 2.0
_MEMORY = 0.9  # weight of a step against the one after it; what is long ago is hoped for again
_WINDOW = 32  # steps


@dataclass(frozen=True)
class StepCosts:
    """Milliseconds of steps in which every request has a draft of the same length."""

    # (requests, draft_len) -> (the whole step, drafting alone); every batch has draft_len 0
    points: dict[tuple[int, int], tuple[float, float]]

    def of(self, batch: int) -> BatchCost:
        """Between two measured batch sizes linear, beyond them the nearest."""
        sizes = sorted({size for size, _ in self.points})
        below = max((size for size in sizes if size <= batch), default=sizes[0])
        above = min((size for size in sizes if size >= batch), default=sizes[-1])
        share = (batch - below) / (above - below) if above > below else 0.0
        lengths = sorted({length for size, length in self.points if size in (below, above)})
        first, second = (self._row(size, lengths) for size in (below, above))
        rows = first + np.clip(share, 0.0, 1.0) * (second - first)
        return BatchCost(lengths, (rows[:, 0] - rows[:, 1]).tolist(), rows[:, 1].tolist())

    def _row(self, batch: int, lengths: Sequence[int]) -> NDArray[np.float64]:  # [len(lengths), 2]
        known = sorted(
            (length, *times) for (size, length), times in self.points.items() if size == batch
        )
        at = [length for length, _, _ in known]
        columns = [np.interp(lengths, at, [point[i] for point in known]) for i in (1, 2)]
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class BatchCost:
    """Of a step of one batch size, whose requests may have drafts of different lengths."""

    lengths: list[int]
    verify_ms: list[float]
    draft_ms: list[float]

    def ms(self, mean: float, longest: int) -> float:
        """Verifying takes as long as all tokens together, drafting as long as the longest draft."""
        return float(
            np.interp(mean, self.lengths, self.verify_ms)
            + np.interp(longest, self.lengths, self.draft_ms)
        )


def predicted_acceptance(stats: SpeculationStats) -> float:
    """The chance that a draft token stands after those before it, from a request's last steps."""
    hits, tries, weight = _HOPE * _HOPE_WEIGHT, _HOPE_WEIGHT, 1.0
    drafted, accepted = stats.drafted_per_step, stats.accepted_per_step
    for place in range(len(drafted) - 1, max(len(drafted) - 1 - _WINDOW, -1), -1):
        hits += weight * accepted[place]
        # Behind the first refused token nothing was tried.
        tries += weight * (accepted[place] + (accepted[place] < drafted[place]))
        weight *= _MEMORY
    return hits / tries


def best_lengths(
    acceptance: Sequence[float],  # of each request
    most: Sequence[int],  # tokens that each may draft
    cost: BatchCost,
    *,
    min_speed: float = 0.0,  # the part of its plain speed that every request keeps
) -> list[int]:
    """For each request; the best there is where a step's time is as `cost` says."""
    batch = len(acceptance)
    plain_ms = cost.ms(0.0, 0)
    best, best_rate = [0] * batch, batch / plain_ms
    longest = max(most, default=0)
    # Where drafting costs nothing, a longer draft is no different from more drafts.
    caps = range(1, longest + 1) if any(cost.draft_ms) else range(longest, longest + bool(longest))
    for cap in caps:
        gains = [
            (-(chance ** (depth + 1)), depth, place)
            for place, chance in enumerate(acceptance)
            for depth in range(min(cap, most[place]))
        ]
        lengths, tokens, drafted, deepest = [0] * batch, [1.0] * batch, 0, 0
        for loss, depth, place in sorted(gains):
            lengths[place] += 1
            tokens[place] -= loss
            drafted, deepest = drafted + 1, max(deepest, depth + 1)
            ms = cost.ms(drafted / batch, deepest)
            rate = sum(tokens) / ms
            if rate > best_rate and min(tokens) / ms >= min_speed / plain_ms:
                best, best_rate = list(lengths), rate
    return best
