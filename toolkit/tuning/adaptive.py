"""Draft lengths that follow acceptance: scored from the trace, and the best one measured.

A trace scores any policy, so all sensible pairs of shortest and longest draft are predicted. Where
the best of them promises more than the best fixed length, the two meet in real rounds, on the same
prompts and in turns; only an interval above 1 makes it the tuned recipe's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from toolkit.measure.metrics import ratio, tpot_ns
from toolkit.measure.records import GroupRun
from toolkit.measure.run import Conditions, Loop, measure_group
from toolkit.speculation.draft_length import Adaptive, Fixed
from toolkit.tuning.choose import Choice, overall, value
from toolkit.tuning.grid import PLAIN, Round
from toolkit.tuning.intervals import Interval, quantile_interval
from toolkit.tuning.journal import Journal
from toolkit.tuning.predict import Predictor
from toolkit.tuning.summary import Cell

SHORTEST = (1, 2)  # drafts that an adaptive length may shrink to


@dataclass(frozen=True)
class Scored:
    """The best policy at one batch size, and what is predicted of it."""

    policy: Adaptive
    cells: tuple[Cell, ...]  # of every domain, the pool last

    @property
    def gain(self) -> float:
        """Of the pool, over plain decoding."""
        return value(next(cell for cell in self.cells if cell.pooled).speedup)


@dataclass(frozen=True)
class Trial:
    """An adaptive length against the best fixed one, measured."""

    batch_size: int
    min_draft_len: int
    max_draft_len: int
    fixed: int
    rounds: int
    gain: Interval | None  # TPOT at the fixed length over TPOT at the adaptive one

    @property
    def won(self) -> bool:
        return self.gain is not None and self.gain.above_one

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "won": self.won}

    def __str__(self) -> str:
        what = f"batch {self.batch_size}: adaptive {self.min_draft_len} to {self.max_draft_len}"
        if self.gain is None:
            return f"{what} against k = {self.fixed}: too few rounds"
        return (
            f"{what} is {self.gain.value:.2f}x as fast as k = {self.fixed} "
            f"({self.gain.low:.2f} to {self.gain.high:.2f})"
        )


def policies(ks: Sequence[int]) -> list[Adaptive]:
    """Every shortest with every longest that is tuned over."""
    return [Adaptive(low, high) for low in SHORTEST for high in sorted(ks) if high > low]


def score(predictor: Predictor, rounds: Sequence[Round], ks: Sequence[int]) -> dict[int, Scored]:
    """The best policy of each batch size; empty where no length leaves room to adapt."""
    best: dict[int, Scored] = {}
    for policy in policies(ks):
        k = policy.max_draft_len
        cells = predictor.cells(rounds, {PLAIN: Fixed(PLAIN), k: policy})
        for batch in {cell.batch_size for cell in cells}:
            mine = tuple(c for c in cells if c.batch_size == batch and not c.plain)
            scored = Scored(policy, mine)
            if batch not in best or scored.gain > best[batch].gain:
                best[batch] = scored
    return best


def promising(
    scored: Mapping[int, Scored], choices: Sequence[Choice]
) -> dict[int, tuple[Adaptive, int]]:
    """Batch size -> policy and fixed length, where adapting is predicted to gain more."""
    return {
        choice.batch_size: (found.policy, choice.best.k)
        for choice in overall(choices)
        if (found := scored.get(choice.batch_size)) and found.gain > max(1.0, value(choice.gain))
    }


def try_out(
    rounds: Sequence[Round],
    contest: Mapping[int, tuple[Adaptive, int]],
    loop: Callable[[Adaptive], Loop],  # drafts as the policy says where a request leaves it open
    conditions: Conditions,
    journal: Journal,
    seed: int,
) -> list[Trial]:
    """Both, in turns, in rounds of every batch size in the contest; what was measured is kept."""
    done = journal.load()
    trials = []
    for batch, (policy, fixed) in sorted(contest.items()):
        values: dict[str, list[list[float]]] = {}
        for round in [round for round in rounds if round.batch_size == batch]:
            if round.key not in done:
                done[round.key] = _pair(round, policy, fixed, loop(policy), conditions, seed)
                journal.append(round.key, done[round.key])
            values.setdefault(round.domain, []).append(_ratios(*done[round.key]))
        rng = np.random.default_rng([seed, batch])
        gain = quantile_interval(list(values.values()), 0.5, rng)
        count = sum(map(len, values.values()))
        trials.append(Trial(batch, policy.min_draft_len, policy.max_draft_len, fixed, count, gain))
    return trials


def _pair(
    round: Round, policy: Adaptive, fixed: int, loop: Loop, conditions: Conditions, seed: int
) -> list[GroupRun]:
    """[fixed, adaptive], measured in random order."""
    order = np.random.default_rng([seed, int(round.key, 16)]).permutation(2)
    runs: dict[int, GroupRun] = {}
    for which in map(int, order):
        k = (fixed, policy.max_draft_len)[which]
        runs[which] = measure_group(
            loop, round.prompts, k=k, by_policy=bool(which), round=round.key, conditions=conditions
        )
    return [runs[0], runs[1]]


def _ratios(fixed: GroupRun, adaptive: GroupRun) -> list[float]:
    before = {record.prompt_id: tpot_ns(record) for record in fixed.requests}
    found = [ratio(before[record.prompt_id], tpot_ns(record)) for record in adaptive.requests]
    return [each for each in found if not math.isnan(each)]  # nan: a single token


def settled_on(trials: Sequence[Trial], batches: Sequence[int]) -> Adaptive | None:
    """One policy for all batch sizes, where it won at each of them."""
    won = {t.batch_size: Adaptive(t.min_draft_len, t.max_draft_len) for t in trials if t.won}
    same = set(won.values())
    return same.pop() if set(won) == set(batches) and len(same) == 1 else None
