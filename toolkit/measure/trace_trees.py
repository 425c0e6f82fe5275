"""The best tree of N nodes for texts that were traced.

Seen from one place of a text, a tree brings as many tokens as the path of the true tokens' ranks
has nodes in it. So over many places it brings the sum over its nodes of how often the path to each
is the true one. No node is on more true paths than its parent: the N most frequent paths are a
tree, and no other of N nodes brings more. That is Medusa's greedy construction (Cai et al. 2024,
section 2.3.3) on counted paths, where hers multiplies accuracies as if heads erred independently.

A loop does not start a step everywhere. It comes more often to places where drafts fail, so the
paths are counted again from where the tree found last lets steps start, while that gains. (Sequoia,
Chen et al. 2024, weighs every place alike.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.trace import UNRANKED
from toolkit.speculation.trees import Choice

ROUNDS = 8  # of counting; three are usual

Ranks = NDArray[np.int64]  # [N, D], see DraftTrace
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Decoded:
    """What decoding the texts takes with a tree."""

    verify_steps: int
    accepted: int

    @property
    def acceptance_length(self) -> float:
        return 1 + self.accepted / self.verify_steps if self.verify_steps else float("nan")


class TreeSearch:
    """The ranks of several texts, as numbered paths that may be worth drafting."""

    def __init__(self, texts: Sequence[Ranks], wanted: int | None = None) -> None:
        """No step starts once `wanted` tokens of a text came; None: at its end."""
        numbers: dict[Choice, int] = {}
        self._texts: list[NDArray[np.int64]] = []  # [N, D] number of the path down to there, or -1
        for ranks in texts:
            here = np.full(ranks.shape, -1)
            for row, path in zip(here, ranks.tolist(), strict=True):
                reach = path.index(UNRANKED) if UNRANKED in path else len(path)
                for depth in range(reach):
                    row[depth] = numbers.setdefault(tuple(path[: depth + 1]), len(numbers))
            self._texts.append(here)
        self._starts = [min(wanted or len(ranks), len(ranks)) for ranks in texts]
        self._numbers = numbers
        self._depths = np.array([len(path) for path in numbers], dtype=np.int64)

    def best(self, nodes: int) -> tuple[Choice, ...]:
        """At most so many nodes, level by level; fewer where the texts never need more."""
        places = [np.ones(starts, np.bool_) for starts in self._starts]
        found, least = np.zeros(len(self._numbers), np.bool_), float("inf")
        for _ in range(ROUNDS):
            tree = self._seen_from(places, nodes)
            places = self._places(tree)
            steps = sum(int(starts.sum()) for starts in places)
            if steps >= least:
                break
            found, least = tree, steps
        return self._choices(found)

    def seen_from(self, places: Sequence[Bools], nodes: int) -> tuple[Choice, ...]:
        """The tree of N nodes that brings most accepted tokens, all steps from here together."""
        return self._choices(self._seen_from(places, nodes))

    def decoded(self, choices: Sequence[Choice]) -> Decoded:
        """With this tree."""
        wanted = set(choices)
        tree = np.array([path in wanted for path in self._numbers], dtype=np.bool_)
        pairs = list(zip(self._accepted(tree), self._places(tree), strict=True))
        steps = sum(int(starts.sum()) for _, starts in pairs)
        return Decoded(steps, sum(int(each[: len(at)][at].sum()) for each, at in pairs))

    def _choices(self, tree: Bools) -> tuple[Choice, ...]:
        paths = [path for path, number in self._numbers.items() if tree[number]]
        return tuple(sorted(paths, key=lambda path: (len(path), path)))

    def _seen_from(self, places: Sequence[Bools], nodes: int) -> Bools:  # of the paths
        """The N paths that are most often the true one."""
        counts = np.zeros(len(self._numbers), np.int64)
        for numbers, starts in zip(self._texts, places, strict=True):
            seen = numbers[: len(starts)][starts]
            counts += np.bincount(seen[seen >= 0], minlength=len(counts))
        # Of equals the shorter comes first, so that no child comes before its parent.
        order = np.lexsort((self._depths, -counts))[:nodes]
        tree = np.zeros(len(counts), np.bool_)
        tree[order[counts[order] > 0]] = True
        return tree

    def _accepted(self, tree: Bools) -> list[NDArray[np.int64]]:  # [N] of each text
        inside = np.append(tree, False)  # the last is that of number -1
        return [np.cumprod(inside[numbers], axis=1).sum(axis=1) for numbers in self._texts]

    def _places(self, tree: Bools) -> list[Bools]:  # [starts] of each text
        """Where verify steps start."""
        found = [np.zeros(starts, np.bool_) for starts in self._starts]
        for starts, accepted in zip(found, self._accepted(tree), strict=True):
            place = 0
            while place < len(starts):
                starts[place] = True
                place += int(accepted[place]) + 1
        return found


def elsewhere(texts: Sequence[Ranks], nodes: int, wanted: int | None = None) -> Decoded:
    """Trees that each half of the texts chose, on the other half: what to expect of new texts."""
    halves = [TreeSearch(texts[half::2], wanted) for half in (0, 1)]
    counts = [b.decoded(a.best(nodes)) for a, b in (halves, halves[::-1])]
    return Decoded(sum(c.verify_steps for c in counts), sum(c.accepted for c in counts))
