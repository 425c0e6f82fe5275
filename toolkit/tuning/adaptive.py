"""What may beat a fixed draft length: scored from the trace, and the best of it measured.

A trace scores any policy, so all sensible pairs of shortest and longest draft are predicted, and a
few thresholds below which an unsure drafter stops; and it finds the best tree of the recipe's size.
What promises more than the best fixed length meets it in real rounds, on the same prompts and in
turns; only an interval above 1 makes it the tuned recipe's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from toolkit.backends.runtime import Runtime
from toolkit.measure.metrics import ratio, tpot_ns
from toolkit.measure.records import GroupRun
from toolkit.measure.run import Conditions, Loop, measure_group
from toolkit.recipe.schema import DraftLength, Speculation
from toolkit.registry import DRAFTERS
from toolkit.speculation.draft_length import Adaptive, Confidence, Fixed
from toolkit.speculation.trees import Tree
from toolkit.tuning.choose import Choice, overall, value
from toolkit.tuning.grid import PLAIN, Round
from toolkit.tuning.intervals import Interval, quantile_interval
from toolkit.tuning.journal import Journal
from toolkit.tuning.predict import Predictor
from toolkit.tuning.summary import Cell
from toolkit.tuning.trees import ChosenTree, Trees

SHORTEST = (1, 2)  # drafts that an adaptive length may shrink to
THRESHOLDS = (0.2, 0.4, 0.6, 0.8)  # of confidence

Policy = Adaptive | Confidence
Challenger = Policy | ChosenTree
# Drafts as the challenger does where a request leaves it open; None: with the recipe's options.
Loops = Callable[[Challenger | None], Loop]


def challenger_of(said: Mapping[str, Any]) -> Challenger:
    """What its `to_json` wrote."""
    options = {name: value for name, value in said.items() if name != "name"}
    if said["name"] == "tree":
        return ChosenTree(tuple(map(tuple, options["choices"])))
    kinds: dict[str, type[Policy]] = {"adaptive": Adaptive, "confidence": Confidence}
    return kinds[said["name"]](**options)


@dataclass(frozen=True)
class Pairing:
    """A round in which a challenger meets a fixed length."""

    round: Round
    challenger: Challenger
    fixed: int


# Measures pairings and hands over the runs of each, [fixed, challenger], as they come.
Pairs = Callable[[Sequence[Pairing], Callable[[Round, list[GroupRun]], None]], None]


@dataclass(frozen=True)
class Scored:
    """The best policy at one batch size, and what is predicted of it."""

    policy: Policy
    cells: tuple[Cell, ...]  # of every domain, the pool last

    @property
    def gain(self) -> float:
        """Of the pool, over plain decoding."""
        return value(next(cell for cell in self.cells if cell.pooled).speedup)


@dataclass(frozen=True)
class Trial:
    """Another way to draft against the best fixed length of the recipe's own, measured."""

    batch_size: int
    challenger: Challenger
    fixed: int
    rounds: int
    gain: Interval | None  # TPOT at the fixed length over the challenger's

    @property
    def won(self) -> bool:
        return self.gain is not None and self.gain.above_one

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "challenger": self.challenger.to_json(), "won": self.won}

    def __str__(self) -> str:
        what = f"batch {self.batch_size}: {self.challenger}"
        if self.gain is None:
            return f"{what} against k = {self.fixed}: too few rounds"
        return (
            f"{what} is {self.gain.value:.2f}x as fast as k = {self.fixed} "
            f"({self.gain.low:.2f} to {self.gain.high:.2f})"
        )


def changes(options: Speculation, challenger: Challenger) -> dict[str, Any]:
    """What the recipe's `speculation` says for it instead."""
    drafter = DRAFTERS[options.drafter]
    if isinstance(challenger, ChosenTree):
        tree = Tree.model_validate(challenger.choices)
        return {**drafter.with_tree(options, tree), "draft_length": DraftLength()}
    depth = drafter.as_deep_as(options, challenger.max_draft_len)
    return {**depth, "draft_length": challenger.section()}


def policies(ks: Sequence[int], *, confident: bool = False) -> list[Policy]:
    """Every shortest with every longest that is tuned over; for drafters that are `confident`,
    every threshold with the longest."""
    found: list[Policy] = [
        Adaptive(low, high) for low in SHORTEST for high in sorted(ks) if high > low
    ]
    return found + [Confidence(max(ks), threshold) for threshold in THRESHOLDS if confident]


def score(predictor: Predictor, rounds: Sequence[Round], ks: Sequence[int]) -> dict[int, Scored]:
    """The best policy of each batch size; empty where no length leaves room to adapt."""
    best: dict[int, Scored] = {}
    for policy in policies(ks, confident=predictor.confident):
        k = policy.max_draft_len
        cells = predictor.cells(rounds, {PLAIN: Fixed(PLAIN), k: policy})
        for batch in {cell.batch_size for cell in cells}:
            mine = tuple(c for c in cells if c.batch_size == batch and not c.plain)
            scored = Scored(policy, mine)
            if batch not in best or scored.gain > best[batch].gain:
                best[batch] = scored
    return best


Contest = Mapping[int, tuple[Challenger, int]]  # batch size -> who meets which fixed length


def promising(scored: Mapping[int, Scored], choices: Sequence[Choice]) -> Contest:
    """The policies that are predicted to gain more."""
    return {
        choice.batch_size: (found.policy, choice.best.k)
        for choice in overall(choices)
        if (found := scored.get(choice.batch_size)) and found.gain > max(1.0, value(choice.gain))
    }


def promising_tree(trees: Trees | None, choices: Sequence[Choice]) -> Contest:
    """The best tree of the recipe's size, wherever it is expected to bring more than the recipe's.

    How long a step takes with it is not predicted, only measured.
    """
    if trees is None or trees.same_size.expected <= trees.own.acceptance_length:
        return {}
    tree = ChosenTree(trees.same_size.choices)
    return {choice.batch_size: (tree, choice.best.k) for choice in overall(choices)}


def try_out(
    rounds: Sequence[Round], contest: Contest, pairs: Pairs, journal: Journal, seed: int
) -> list[Trial]:
    """Both, in turns, in rounds of every batch size in the contest; what was measured is kept."""
    done = journal.load()
    meeting = [round for round in rounds if round.batch_size in contest]

    def keep(round: Round, runs: list[GroupRun]) -> None:
        done[round.key] = runs
        journal.append(round.key, runs)

    todo = [Pairing(r, *contest[r.batch_size]) for r in meeting if r.key not in done]
    if todo:
        pairs(todo, keep)
    trials = []
    for batch, (challenger, fixed) in sorted(contest.items()):
        values: dict[str, list[list[float]]] = {}
        for round in [round for round in meeting if round.batch_size == batch]:
            values.setdefault(round.domain, []).append(_ratios(*done[round.key]))
        rng = np.random.default_rng([seed, batch])
        gain = quantile_interval(list(values.values()), 0.5, rng)
        count = sum(map(len, values.values()))
        trials.append(Trial(batch, challenger, fixed, count, gain))
    return trials


def loops_of(runtime: Runtime, longest: int) -> Loops:
    """Of the loaded models; fixed lengths up to `longest`."""

    def loop(challenger: Challenger | None) -> Loop:
        if challenger is None:
            return runtime.loop(draft_len=longest, max_prefill_tokens=sys.maxsize)
        options = runtime.recipe.speculation
        options = options.model_copy(update=changes(options, challenger))
        recipe = runtime.recipe.model_copy(update={"speculation": options})
        return replace(runtime, recipe=recipe).loop(max_prefill_tokens=sys.maxsize)

    return loop


def measure_pair(
    pairing: Pairing, loop: Loops, conditions: Conditions, seed: int
) -> list[GroupRun]:
    """[fixed, challenger], measured in random order."""
    round, challenger = pairing.round, pairing.challenger
    order = np.random.default_rng([seed, int(round.key, 16)]).permutation(2)
    runs: dict[int, GroupRun] = {}
    for which in map(int, order):
        k = (pairing.fixed, challenger.max_draft_len)[which]
        runs[which] = measure_group(
            loop((None, challenger)[which]),
            round.prompts,
            k=k,
            by_policy=bool(which),
            round=round.key,
            conditions=conditions,
        )
    return [runs[0], runs[1]]


def _ratios(fixed: GroupRun, challenger: GroupRun) -> list[float]:
    before = {record.prompt_id: tpot_ns(record) for record in fixed.requests}
    found = [ratio(before[record.prompt_id], tpot_ns(record)) for record in challenger.requests]
    return [each for each in found if not math.isnan(each)]  # nan: a single token


def settled_on(trials: Sequence[Trial], batches: Sequence[int]) -> Challenger | None:
    """What won at every batch size; of several the one that gained most."""
    gains: dict[Challenger, dict[int, float]] = {}
    for trial in trials:
        if trial.won:
            gains.setdefault(trial.challenger, {})[trial.batch_size] = value(trial.gain)
    everywhere = {
        who: math.prod(found.values()) for who, found in gains.items() if set(found) == set(batches)
    }
    return max(everywhere, key=lambda who: everywhere[who], default=None)
