"""What a prediction leaves to be measured: little, and no longer than it takes to be sure.

At each batch size the predicted best draft length, the one that would gain more if it were as sure,
else the better of its neighbours if the prediction can hardly tell them apart, and plain decoding,
over a share of the rounds; a batch size is done earlier when the interval of its speed-up is tight.
Where several lengths come to nearly the same, a few rounds decide nothing between them, and each
costs as much as the best. Where a prediction that few rounds corrected comes to another verdict, a
busy machine may have spoken: more of them decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from toolkit.measure.records import GroupRun
from toolkit.recipe.objective import Objective
from toolkit.tuning.choose import Choice, overall
from toolkit.tuning.grid import Grid, Round
from toolkit.tuning.summary import ONE, Cell, measured_gains, paired

SHARE = 1 / 8  # of the rounds are measured at most,
MOST = 1 / 2  # or this, where they and the prediction come to different verdicts
NEAR = 0.05  # if a neighbour's predicted speed-up is lower by more, it is not measured
FEW = 4  # requests of a domain that are measured at least
TIGHT = 0.04  # half the width of a speed-up's interval, of the speed-up: enough is known


@dataclass(frozen=True)
class ConfirmGrid(Grid):
    """A share of a grid's rounds, with draft lengths of its own at each batch size."""

    at: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    objective: Objective = field(default_factory=Objective)
    times: Mapping[int, int] = field(default_factory=dict)  # batch size -> as many rounds; else 1

    def lengths(self, batch: int) -> tuple[int, ...]:
        return self.at[batch]

    def rounds(self) -> list[Round]:
        """Every domain's first round at each batch size before anybody's second."""
        kept: list[tuple[int, Round]] = []
        counts: dict[tuple[str, int], int] = {}
        for round in super().rounds():
            place = (round.domain, round.batch_size)
            counts[place] = counts.get(place, 0) + 1
            if counts[place] <= self._wanted(*place):
                kept.append((counts[place], round))
        return [round for _, round in sorted(kept, key=lambda pair: pair[0])]

    def _wanted(self, domain: str, batch: int) -> int:
        rounds = len(self.domains[domain]) // batch
        few = max(self._least(batch), math.ceil(SHARE * rounds))
        return max(few, min(few * self.times.get(batch, 1), math.ceil(MOST * rounds)))

    def _least(self, batch: int) -> int:
        """Rounds of a domain: an interval needs a few requests, and two rounds in all."""
        return max(2 if len(self.domains) == 1 else 1, math.ceil(FEW / batch))

    def settled(self, round: Round, done: Mapping[str, Sequence[GroupRun]]) -> bool:
        """Whether the rounds measured so far say enough about this one's batch size."""
        found = [paired(done.values()).get((round.batch_size, d), []) for d in self.domains]
        if any(len(rounds) < self._least(round.batch_size) for rounds in found):
            return False
        for k in self.lengths(round.batch_size):
            rng = np.random.default_rng([self.seed, round.batch_size, k])
            gain = measured_gains(found, k, self.objective, ONE, rng).by(self.objective)
            if gain is None or gain.high - gain.low > 2 * TIGHT * gain.value:
                return False
        return True


def confirm_grid(
    grid: Grid, predicted: Sequence[Cell], choices: Sequence[Choice], objective: Objective
) -> ConfirmGrid:
    """The rounds and draft lengths that are worth measuring."""
    at = {c.batch_size: _worth_it(c, predicted, grid.ks) for c in overall(choices)}
    ks = tuple(sorted({k for lengths in at.values() for k in lengths}))
    return ConfirmGrid(ks, tuple(sorted(at)), grid.domains, grid.seed, at, objective)


def contested(
    confirm: ConfirmGrid, predicted: Sequence[Choice], measured: Sequence[Choice]
) -> list[int]:
    """Batch sizes whose verdicts differ, as long as there are rounds left for them.

    What was surely slower is no matter of chance.
    """
    found = {choice.batch_size: choice for choice in overall(measured)}
    return [
        expected.batch_size
        for expected in overall(predicted)
        if (choice := found.get(expected.batch_size))
        and {choice.verdict, expected.verdict} == {"on", "off"}
        and not (choice.gain and choice.gain.high < 1.0)
        and len(widened(confirm, [choice.batch_size]).rounds()) > len(confirm.rounds())
    ]


def widened(confirm: ConfirmGrid, batches: Sequence[int]) -> ConfirmGrid:
    """Twice as many rounds at these batch sizes, the ones before among them."""
    more = {batch: 2 * confirm.times.get(batch, 1) for batch in batches}
    return replace(confirm, times={**confirm.times, **more})


def _worth_it(choice: Choice, predicted: Sequence[Cell], ks: Sequence[int]) -> tuple[int, ...]:
    """The best, and what may be better; else the better of its neighbours, where it comes near."""
    ordered, best = sorted(ks), choice.best
    if choice.hope.k != best.k:
        return tuple(sorted({best.k, choice.hope.k}))
    gains = {
        cell.k: cell.speedup.value
        for cell in predicted
        if (cell.batch_size, cell.domain) == (best.batch_size, best.domain) and cell.speedup
    }
    place = ordered.index(best.k)
    around = [*ordered[max(0, place - 1) : place], *ordered[place + 1 : place + 2]]
    near = max(around, key=lambda k: gains.get(k, 0.0), default=best.k)
    if gains.get(near, 0.0) < gains.get(best.k, 0.0) * (1 - NEAR):
        near = best.k
    return tuple(sorted({best.k, near}))
