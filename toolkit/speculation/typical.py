"""Typical acceptance (Medusa, Cai et al. 2024, section 2.3.2): draft tokens that are likely enough.

It is lossy: a draft token that stands this way comes out more often than the target would say it.
A recipe asks for it by name (`posterior_threshold`), and whoever shows such output says so. Greedy
requests are verified exactly, which is what the rule comes to at temperature 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt

import numpy as np

from toolkit.recipe.schema import Speculation
from toolkit.registry import DRAFTERS
from toolkit.speculation.sampling import Floats, Role, draw
from toolkit.speculation.verify_tree import Numbers


def lossy(options: Speculation) -> str | None:
    """What to say about the output of a recipe that chose typical acceptance; None: it is exact."""
    epsilon = DRAFTERS[options.drafter].posterior_threshold(options)
    if epsilon is None:
        return None
    return (
        "lossy: output is not the target's distribution (typical acceptance, "
        f"speculation.posterior_threshold {epsilon:g})"
    )


def acceptance_bound(
    row: Floats,  # [V]
    epsilon: float,
) -> float:
    """min(epsilon, delta exp(-H)): what a token's probability must exceed, H being the entropy.

    delta is the square root of epsilon, as in the paper's experiments.
    """
    likely = row[row > 0]
    entropy = -float((likely * np.log(likely)).sum())
    return min(epsilon, sqrt(epsilon) * exp(-entropy))


def verify_typical(
    tokens: Sequence[int],  # [N] of the nodes, parents before their children
    parents: Sequence[int],  # [N]
    target_probs: Sequence[Floats],  # [N + 1] rows of V: after the text, and after each node
    epsilon: float,
    number: Numbers,
) -> tuple[list[int], list[int]]:
    """The longest path of likely tokens, and one token that the target draws after it.

    Of equally long paths the likeliest, then the first. Returns the new tokens and their nodes.
    """
    rows: dict[int, tuple[Floats, float]] = {}  # node -> what follows it, and what must be exceeded
    value = {-1: (0, 0.0)}  # node that stands -> its depth, and the logarithm of its path
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent not in value:
            continue
        if parent not in rows:
            row = target_probs[parent + 1]
            rows[parent] = row, acceptance_bound(row, epsilon)
        row, bound = rows[parent]
        if row[token] > bound:
            depth, chance = value[parent]
            value[node] = depth + 1, chance + log(row[token])
    last = max(value, key=lambda node: (*value[node], -node))
    path: list[int] = []
    node = last
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    emitted = draw(target_probs[last + 1], number(len(path), Role.EMIT))
    return [*(tokens[node] for node in path), emitted], path
