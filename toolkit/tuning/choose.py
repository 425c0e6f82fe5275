"""The verdict: which draft length at which batch size, and where speculation does not pay.

A draft length is chosen only when the interval of its speed-up lies above 1; otherwise: off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from toolkit.tuning.grid import PLAIN
from toolkit.tuning.summary import Cell

NOTHING: Mapping[tuple[int, str], int] = MappingProxyType({})


@dataclass(frozen=True)
class Choice:
    """What to do for one domain (or all) at one batch size, and the best that was seen there."""

    batch_size: int
    domain: str
    verdict: Literal["on", "off", "undecided"]
    best: Cell  # chosen when "on", else the one that came nearest

    @property
    def k(self) -> int:
        """The draft length to use; 0 is off."""
        return self.best.k if self.verdict == "on" else PLAIN

    @property
    def reason(self) -> str:
        """In words, with the numbers behind them."""
        gain = self.best.speedup
        if gain is None:
            return "fewer than two rounds: no interval, no verdict"
        numbers = f"{gain.value:.2f} (95 % interval {gain.low:.2f} to {gain.high:.2f})"
        if self.verdict == "on":
            return f"k = {self.best.k} speeds decoding up by {numbers}"
        return f"no k is surely faster than plain decoding; k = {self.best.k} comes to {numbers}"


def choose(
    cells: Iterable[Cell], expected: Mapping[tuple[int, str], int] = NOTHING
) -> list[Choice]:
    """One choice per batch size and domain, in the cells' order.

    `expected` draft lengths, by batch size and domain, are taken wherever they surely pay: between
    lengths that a few rounds cannot tell apart, a prediction over all prompts decides.
    """
    groups: dict[tuple[int, str], list[Cell]] = {}
    for cell in cells:
        if not cell.plain:
            groups.setdefault((cell.batch_size, cell.domain), []).append(cell)
    return [_choose(*place, group, expected.get(place)) for place, group in groups.items()]


def _choose(batch: int, domain: str, cells: Sequence[Cell], expected: int | None) -> Choice:
    winners = [cell for cell in cells if cell.speedup and cell.speedup.above_one]
    decided = all(cell.speedup for cell in cells)
    # max() takes the first of equals: the shorter draft.
    best = max(winners or cells, key=lambda cell: (cell.k == expected, _gain(cell)))
    return Choice(batch, domain, "on" if winners else "off" if decided else "undecided", best)


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
            parts.append(f"{word} at batch {_and(batches)}")
    parts = parts or ["too little was measured for a verdict"]
    text = f"Over all prompts: {'; '.join(parts)}."
    # The pool can lose while a domain gains, and the person may serve just that domain.
    gains = [c for c in choices if c.verdict == "on" and c not in per_batch]
    if gains:
        top = max(gains, key=lambda choice: _gain(choice.best))
        text += f" Speculation helps most on {top.domain}: {_setting(top)}."
    return text


def _setting(choice: Choice) -> str:
    gain = choice.best.speedup
    numbers = f" ({gain.value:.2f}x, {gain.low:.2f} to {gain.high:.2f})" if gain else ""
    return f"k = {choice.k} at batch {choice.batch_size}{numbers}"


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _gain(cell: Cell) -> float:
    return cell.speedup.value if cell.speedup else 1e-9
