"""A tree of draft tokens as the parent of each node: depths, and who may attend to whom.

Nodes are numbered so that a parent comes before its children; -1 is the text that they continue.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def depths(parents: Sequence[int]) -> list[int]:
    """Tokens from the text down to each node, itself included: 1 for a child of the text."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def ancestors(parents: Sequence[int]) -> NDArray[np.bool_]:
    """[N, N]: row i is true at node i and at every node above it: the mask of one forward pass."""
    mask = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


def children(parents: Sequence[int], node: int) -> list[int]:
    """The nodes that follow `node`, in the order in which they were drafted."""
    return [child for child, parent in enumerate(parents) if parent == node]


def parents_of(choices: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Medusa's or EAGLE's choices as a tree, level by level: each node's parent, and (depth, rank).

    Rank is the last index of the path: the node is its parent's rank-th likeliest child.
    """
    paths = sorted((tuple(path) for path in choices), key=lambda path: (len(path), path))
    place = {path: node for node, path in enumerate(paths)}
    return (
        tuple(place[path[:-1]] if len(path) > 1 else -1 for path in paths),
        [(len(path), path[-1]) for path in paths],
    )


def check_parents(parents: Sequence[int], nodes: int) -> None:
    """Refuse what is no tree before it reaches the target's cache."""
    if len(parents) != nodes:
        raise RuntimeError(f"a tree of {nodes} nodes came with {len(parents)} parents")
    wrong = [node for node, parent in enumerate(parents) if not -1 <= parent < node]
    if wrong:
        raise RuntimeError(f"node {wrong[0]} of a draft tree comes before its parent")
