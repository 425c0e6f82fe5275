"""The verdict: which draft length at which batch size, and where speculation does not pay.

A draft length is chosen only when the interval of its gain lies above 1 and, unless the objective
says otherwise, no domain surely gets slower with it; otherwise: off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from toolkit.recipe.objective import Objective
from toolkit.tuning.grid import PLAIN
from toolkit.tuning.intervals import Interval
from toolkit.tuning.objective import keeps_limit
from toolkit.tuning.summary import Cell

NOTHING: Mapping[tuple[int, str], int] = MappingProxyType({})
Gain = Callable[[Cell], Interval | None]
Rank = Callable[[Cell], float]  # the more, the better


def by_objective(cell: Cell) -> Interval | None:
    """The gain that the run's own objective is about."""
    return cell.speedup


def by_prediction(objective: Objective) -> Rank | None:
    """Predictions of TPOT rank by TPOT itself, which the objective is about; None: by their gains.

    Measured ones are held against plain decoding of the same request before they are ranked, for
    the machine's pace differs from one to the next. The middle of those ratios is not the ratio of
    the middles, though, and nothing disturbs a prediction.
    """
    if objective.metric != "tpot":
        return None  # a gain in throughput or cost is a ratio of sums: it ranks as they do
    return lambda cell: -math.inf if cell.tpot_objective_ns is None else -cell.tpot_objective_ns


@dataclass(frozen=True)
class Choice:
    """What to do for one domain (or all) at one batch size, and the best that was seen there."""

    batch_size: int
    domain: str
    verdict: Literal["on", "off", "undecided"]
    best: Cell  # chosen when "on", else the one that came nearest
    gain: Interval | None  # of the best
    hope: Cell  # the best of those that may be chosen, sure or not
    note: str = ""  # what stood against a better one

    @property
    def k(self) -> int:
        """The draft length to use; 0 is off."""
        return self.best.k if self.verdict == "on" else PLAIN

    @property
    def reason(self) -> str:
        """In words, with the numbers behind them."""
        if self.gain is None:
            return "fewer than two rounds: no interval, no verdict"
        if self.verdict == "on":
            said = f"k = {self.best.k} speeds decoding up by {numbers(self.gain)}"
        else:
            said = (
                f"no k is surely faster than plain decoding; k = {self.best.k} comes to "
                f"{numbers(self.gain)}"
            )
        return "; ".join(filter(None, (said, self.note)))


def choose(
    cells: Iterable[Cell],
    objective: Objective | None = None,
    expected: Mapping[tuple[int, str], int] = NOTHING,
    *,
    gain: Gain = by_objective,
    rank: Rank | None = None,
) -> list[Choice]:
    """One choice per batch size and domain, in the cells' order: of the cells that surely gain, the
    one that ranks first, by its gain unless `rank` says otherwise.

    `expected` draft lengths, by batch size and domain, are taken wherever they surely pay: between
    lengths that a few rounds cannot tell apart, the prediction decides.
    """
    cells, objective = list(cells), objective or Objective()
    rank = rank or (lambda cell: value(gain(cell)))
    groups: dict[tuple[int, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.batch_size, cell.domain), []).append(cell)
    slower = _slower(cells, gain) if objective.no_domain_slower else {}
    return [
        _choose([c for c in group if not c.plain], plain, objective, slower, expected, gain, rank)
        for group in groups.values()
        for plain in [next((c for c in group if c.plain), None)]
        if any(not cell.plain for cell in group)
    ]


def _slower(cells: Sequence[Cell], gain: Gain) -> dict[tuple[int, int], list[Cell]]:
    """(batch size, k) -> the domains that surely lose there."""
    found: dict[tuple[int, int], list[Cell]] = {}
    for cell in cells:
        lost = gain(cell)
        if not cell.plain and lost and lost.high < 1.0:
            found.setdefault((cell.batch_size, cell.k), []).append(cell)
    return found


def _choose(
    cells: Sequence[Cell],
    plain: Cell | None,
    objective: Objective,
    slower: Mapping[tuple[int, int], list[Cell]],
    expected: Mapping[tuple[int, str], int],
    gain: Gain,
    rank: Rank,
) -> Choice:
    batch, domain = cells[0].batch_size, cells[0].domain
    wanted = expected.get((batch, domain))

    def place(cell: Cell) -> tuple[bool, float]:
        return cell.k == wanted, rank(cell)  # max() takes the first: the shorter draft

    # A single domain's own choice is its own business: the constraint binds deployments of all.
    fair = [c for c in cells if not (c.pooled and (batch, c.k) in slower)]
    allowed = [c for c in fair if keeps_limit(c.tpot_objective_ns, objective)]
    winners = [c for c in allowed if (found := gain(c)) and found.above_one]
    if plain and not keeps_limit(plain.tpot_objective_ns, objective):
        winners = [c for c in allowed if gain(c)]  # only speculation keeps the limit
    best = max(winners or allowed or cells, key=place)
    hope = max(allowed or cells, key=rank)
    decided = all(gain(cell) for cell in cells)
    verdict: Literal["on", "off", "undecided"] = (
        "on" if winners else "off" if decided else "undecided"
    )
    reached = value(gain(best)) if winners else 1.0
    lost = [c for c in cells if (found := gain(c)) and found.above_one and found.value > reached]
    note = _note(lost, fair, slower, objective, gain)
    return Choice(batch, domain, verdict, best, gain(best), hope, note)


def _note(
    lost: Sequence[Cell],  # better than what was chosen
    fair: Sequence[Cell],
    slower: Mapping[tuple[int, int], list[Cell]],
    objective: Objective,
    gain: Gain,
) -> str:
    """Why something better was not taken."""
    unfair = [cell for cell in lost if cell not in fair]
    if unfair:
        top = max(unfair, key=lambda cell: value(gain(cell)))
        losers = slower[top.batch_size, top.k]
        worst = min(losers, key=lambda cell: value(gain(cell)))
        return (
            f"k = {top.k} would gain {value(gain(top)):.2f}x over all prompts but makes "
            f"{worst.domain} slower ({value(gain(worst)):.2f}x); serve that domain apart, or set "
            "tune.objective.no_domain_slower=false"
        )
    beyond = [c for c in lost if not keeps_limit(c.tpot_objective_ns, objective)]
    if beyond:
        top = max(beyond, key=lambda cell: value(gain(cell)))
        return (
            f"k = {top.k} would gain {value(gain(top)):.2f}x but exceeds the TPOT limit of "
            f"{objective.tpot_limit_ms:g} ms"
        )
    return ""


def overall(choices: Iterable[Choice]) -> list[Choice]:
    """The choices that a deployment of all domains together is made of, one per batch size."""
    return [choice for choice in choices if choice.best.pooled]


def schedule(choices: Iterable[Choice]) -> list[tuple[int, int]] | None:
    """(batch size, draft length from there on), 0 for off; only where the length changes.

    A batch size that is undecided is left to its neighbours. None: all of them are.
    """
    decided = [choice for choice in overall(choices) if choice.verdict != "undecided"]
    steps: list[tuple[int, int]] = []
    for choice in sorted(decided, key=lambda choice: choice.batch_size):
        if not steps or steps[-1][1] != choice.k:
            steps.append((choice.batch_size, choice.k))
    return steps or None


def verdict(choices: Sequence[Choice]) -> str:
    """One sentence a person can act on."""
    per_batch = overall(choices)
    parts = [_setting(choice) for choice in per_batch if choice.verdict == "on"]
    for word in ("off", "undecided"):
        if batches := [str(c.batch_size) for c in per_batch if c.verdict == word]:
            parts.append(f"{word} at batch {listed(batches)}")
    parts = parts or ["too little was measured for a verdict"]
    text = f"Over all prompts: {'; '.join(parts)}."
    # The pool can lose while a domain gains, and the person may serve just that domain.
    gains = [c for c in choices if c.verdict == "on" and c not in per_batch]
    if gains:
        top = max(gains, key=lambda choice: value(choice.gain))
        text += f" Speculation helps most on {top.domain}: {_setting(top)}."
    return text


def _setting(choice: Choice) -> str:
    gain = choice.gain
    shown = f" ({gain.value:.2f}x, {gain.low:.2f} to {gain.high:.2f})" if gain else ""
    return f"k = {choice.k} at batch {choice.batch_size}{shown}"


def numbers(gain: Interval) -> str:
    return f"{gain.value:.2f} (95 % interval {gain.low:.2f} to {gain.high:.2f})"


def listed(words: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def value(gain: Interval | None) -> float:
    """For ranking: what has no interval comes last."""
    return gain.value if gain else 1e-9
