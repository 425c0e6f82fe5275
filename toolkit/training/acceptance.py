"""Acceptance of a head on outputs of the target, from one pass over them and without a loop.

Exact for greedy drafting of greedy outputs: whether depth d stands, given that all before it stood,
is a comparison of two tokens (the acceptance trace of a head, restricted to a chain).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Acceptance:
    """Counts over all drafts that could have been begun, and over those that a loop would begin."""

    reached: tuple[int, ...]  # per depth: starts whose earlier tokens all stood
    accepted: tuple[int, ...]  # per depth: of those, how many stood
    tokens: int  # that the loop emitted in its verify steps
    steps: int

    @property
    def conditional(self) -> list[float]:
        """Acceptance at each depth, given that the draft was right up to there."""
        return [a / r if r else 0.0 for a, r in zip(self.accepted, self.reached, strict=True)]

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify step, the bonus or corrected one included."""
        return self.tokens / self.steps if self.steps else 0.0


def acceptance(found: Iterable[tuple[NDArray[np.bool_], int]], depth: int) -> Acceptance:
    """Of sequences given as (matches [depth, R], rows that there are)."""
    reached, accepted = np.zeros(depth, np.int64), np.zeros(depth, np.int64)
    tokens = steps = 0
    for matches, rows in found:
        runs = [run_length(matches, start, rows) for start in range(rows)]
        for start, run in enumerate(runs):
            possible = min(depth, rows - start)
            reached[: min(run + 1, possible)] += 1
            accepted[:run] += 1
        made, took = _rounds(runs, rows)
        tokens, steps = tokens + made, steps + took
    return Acceptance(tuple(reached.tolist()), tuple(accepted.tolist()), tokens, steps)


def run_length(matches: NDArray[np.bool_], start: int, rows: int) -> int:
    """How many tokens of the draft that begins at row `start` stand."""
    run = 0
    while run < len(matches) and start + run < rows and matches[run, start + run]:
        run += 1
    return run


def _rounds(runs: Sequence[int], rows: int) -> tuple[int, int]:
    """(tokens, verify steps) of the loop; the last step may end with its draft, without a bonus."""
    at = steps = 0
    while at < rows:
        at += runs[at] + 1
        steps += 1
    return rows, steps
