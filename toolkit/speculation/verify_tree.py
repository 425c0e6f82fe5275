"""Which path of a tree of draft tokens stands, and the one token that the target adds to it.

Row 0 of the target's logits follows the text, row i + 1 follows node i of the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from toolkit.speculation.sampling import Floats, Role, draw
from toolkit.speculation.token_tree import children
from toolkit.speculation.verify import residual


class Numbers(Protocol):
    """Uniforms of one verify step."""

    def __call__(self, depth: int, role: Role, sibling: int = 0) -> float:
        """In [0, 1), for the `sibling`-th token that is tried `depth` tokens after the text."""
        ...


def verify_tree_greedy(
    tokens: Sequence[int],  # [N] of the nodes
    parents: Sequence[int],  # [N]
    target_tokens: Sequence[int],  # [N + 1] the target's choice at each row
) -> tuple[list[int], list[int]]:
    """The longest path that the target would have chosen, and its own next token.

    Returns the new tokens and the nodes of that path.
    """
    path: list[int] = []
    node = -1
    while True:
        wanted = target_tokens[node + 1]
        for child in children(parents, node):
            if tokens[child] == wanted:
                break
        else:
            return [*(tokens[n] for n in path), wanted], path
        path.append(child)
        node = child


def verify_tree(
    tokens: Sequence[int],  # [N] of the nodes
    parents: Sequence[int],  # [N]
    draft_probs: Floats
    | Sequence[Floats]
    | None,  # [N, V], see Proposal; None: drafted without chance
    target_probs: Sequence[Floats],  # [N + 1] rows of V
    number: Numbers,
) -> tuple[list[int], list[int]]:
    """Multi-round rejection: try each child in turn, and forget of the target what was refused.

    The emitted sequence has exactly the target's distribution. For children drawn without
    replacement: recursive rejection sampling (Jeon et al. 2024, arXiv 2402.14160, alg. 2); for
    children that chance had no part in, its special case of one-hot distributions (SpecInfer,
    Miao et al. 2024, multi-step speculative sampling). Returns the new tokens and their nodes.
    """
    path: list[int] = []
    node = -1
    while True:
        target = target_probs[node + 1]
        accepted = None
        refused: list[int] = []
        for sibling, child in enumerate(children(parents, node)):
            token = tokens[child]
            draft = _draft_row(draft_probs, child, token, len(target), refused)
            # Strict: with u = 0 a token of probability zero must still be refused.
            u = number(len(path), Role.ACCEPT, sibling)
            if u * draft[token] < target[token] / target.sum():
                accepted = child
                break
            target = residual(target / target.sum(), draft)
            refused.append(token)
        if accepted is None:
            emitted = draw(target, number(len(path), Role.EMIT))
            return [*(tokens[n] for n in path), emitted], path
        path.append(accepted)
        node = accepted


def _draft_row(
    draft_probs: Floats | Sequence[Floats] | None,
    child: int,
    token: int,
    size: int,
    refused: Sequence[int],
) -> Floats:
    """What this child was drawn from: without the siblings that were drawn before it."""
    if draft_probs is None:
        row = np.zeros(size)
        row[token] = 1.0
        return row
    row = draft_probs[child].copy()
    row[list(refused)] = 0.0
    return np.asarray(row / row.sum(), dtype=np.float64)
