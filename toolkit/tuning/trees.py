"""Which tree of how many nodes suits the traced texts, for drafters that are told their tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from toolkit.measure.trace_trees import TreeSearch, elsewhere
from toolkit.recipe.schema import Speculation
from toolkit.registry import DRAFTERS
from toolkit.speculation.trace import DraftTrace
from toolkit.speculation.trees import Choice


@dataclass(frozen=True)
class ChosenTree:
    """To draft at full depth in every step."""

    choices: tuple[Choice, ...]

    @property
    def max_draft_len(self) -> int:
        return max(map(len, self.choices))

    def __str__(self) -> str:
        return f"the best tree of {len(self.choices)} nodes"

    def to_json(self) -> dict[str, Any]:
        return {"name": "tree", "choices": [list(path) for path in self.choices]}


@dataclass(frozen=True)
class ScoredTree:
    """A tree and its tokens per verify step: on the traced texts, and to be expected of others."""

    choices: tuple[Choice, ...]
    acceptance_length: float
    expected: float  # of each half of the texts with the tree that the other half chose

    @property
    def depth(self) -> int:
        return max(map(len, self.choices))

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": len(self.choices),
            "depth": self.depth,
            "acceptance_length": self.acceptance_length,
            "expected_acceptance_length": self.expected,
            "choices": [list(path) for path in self.choices],
        }


@dataclass(frozen=True)
class Trees:
    """The recipe's tree beside the best ones."""

    option: str  # of `speculation`: medusa_choices or eagle_choices
    own: ScoredTree  # nothing chose it for these texts: expected is what it brings on them
    best: tuple[ScoredTree, ...]  # by number of nodes, up to max_draft_len

    @property
    def same_size(self) -> ScoredTree:
        """The best that has no more nodes than the recipe's: a step costs no more with it."""
        fitting = [tree for tree in self.best if len(tree.choices) <= len(self.own.choices)]
        return fitting[-1]

    def to_json(self) -> dict[str, Any]:
        return {
            "option": self.option,
            "own": self.own.to_json(),
            "best": [tree.to_json() for tree in self.best],
        }


def find_trees(
    options: Speculation, traces: Iterable[DraftTrace], wanted: int | None = None
) -> Trees | None:
    """None where the drafter is told no tree, or its traces have no ranks."""
    drafter = DRAFTERS[options.drafter]
    texts = [trace.ranks for trace in traces if trace.ranks is not None and len(trace.ranks)]
    if (own := drafter.tree(options)) is None or not texts:
        return None
    changed = drafter.with_tree(options, own)
    option = next(name for name, value in changed.items() if value is own)
    search = TreeSearch(texts, wanted)

    def scored(choices: tuple[Choice, ...], expected: float | None = None) -> ScoredTree:
        length = search.decoded(choices).acceptance_length
        return ScoredTree(choices, length, length if expected is None else expected)

    best: list[ScoredTree] = []
    for nodes in _sizes(len(own.choices), options.max_draft_len):
        choices = search.best(nodes)
        if not choices:
            return None  # no draft was ever right
        if not best or len(choices) > len(best[-1].choices):
            best.append(scored(choices, elsewhere(texts, nodes, wanted).acceptance_length))
    return Trees(option, scored(own.choices), tuple(best))


def _sizes(own: int, most: int) -> list[int]:
    """Powers of two up to the most, and the recipe's own number of nodes."""
    powers = [2**i for i in range(most.bit_length())]
    return sorted({*powers, own, most})
