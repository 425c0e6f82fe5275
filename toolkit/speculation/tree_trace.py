"""Traces of trees: one reading gives the true tokens' ranks, and any choices are scored by them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.sampling import ranks
from toolkit.speculation.trace import UNRANKED, DraftTrace
from toolkit.speculation.trees import Choice


def true_ranks(
    logits: NDArray[np.float32],  # [S, D]
    target_ids: NDArray[np.int64],  # [D] the target's token for each of the draft's
    true: NDArray[np.int64],  # [S] the target's
) -> NDArray[np.int64]:  # [S]
    """Ranks of the true tokens; UNRANKED too where the draft has no such token."""
    place = np.full(1 + max(target_ids.max(), true.max(initial=0)), -1, dtype=np.int64)
    place[target_ids] = np.arange(len(target_ids))
    own = place[true]
    found = np.minimum(ranks(logits, np.maximum(own, 0)), UNRANKED)
    return np.where(own >= 0, found, UNRANKED)


def tree_trace(
    found: NDArray[np.int64],  # [N, D] ranks of the true tokens
    choices: Sequence[Choice],
    reach: int,  # the deepest level that the drafter has
) -> DraftTrace:
    """What becomes of a tree whose nodes are the likeliest tokens.

    A node stands where it is the true token, at any temperature: given that the target drew y, a
    tree drafted without chance has accepted it exactly if y is among the children.
    """
    nodes, accept = set(choices), np.zeros(found.shape)
    for stands, path in zip(accept, map(tuple, found.tolist()), strict=True):
        depth = 0
        while depth < len(path) and path[: depth + 1] in nodes:
            depth += 1
        stands[:depth] = 1.0
    offered = min(found.shape[1], reach, max(map(len, choices)))
    return DraftTrace(accept, np.full(len(found), offered, dtype=np.int64), found)
