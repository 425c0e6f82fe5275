"""Trees that a feature head grows: a fixed shape (EAGLE-1), or where it is surest (EAGLE-2).

The head's cache knows no branches, so for every level the nodes that are continued are fed again
as one tree behind the pairs that stand; a head is small enough for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.draft_chain import spread, under_grammar
from toolkit.speculation.drafters.feature_drafter import Branch, Features
from toolkit.speculation.heads import FeatureHead
from toolkit.speculation.interfaces import Proposal, Step
from toolkit.speculation.sampling import (
    Floats,
    Role,
    confidence,
    distribution,
    draw,
    likeliest,
    uniform,
)
from toolkit.speculation.token_tree import ancestors, children, parents_of
from toolkit.speculation.trees import Choice

_ROOT = -1
DYNAMIC = "a dynamic tree is another one for every draft length"


@dataclass(slots=True)
class Growth:
    """The tree of one sequence while it grows; node -1 is the text."""

    branch: Branch
    tokens: list[int] = field(default_factory=list)  # of the target's vocabulary
    parents: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    probs: list[Floats] = field(default_factory=list)  # [V] of each node, when drawn by chance
    fed: list[int] = field(default_factory=list)  # nodes that the head has read, in that order
    logits: dict[int, NDArray[np.float32]] = field(default_factory=dict)  # [D] after a node
    features: dict[int, Features] = field(default_factory=dict)  # [h] after a node

    def __post_init__(self) -> None:
        self.features[_ROOT] = self.branch.feature
        self.logits[_ROOT] = self.branch.logits

    def add(self, token: int, parent: int) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.depth.append(1 + (self.depth[parent] if parent >= 0 else 0))
        return len(self.tokens) - 1

    def mask(self, node: int, ids: NDArray[np.int64]) -> None:
        """Take from what the head says after this node what the request's grammar forbids."""
        path, above = list[int](), node
        while above >= 0:
            path, above = [self.tokens[above], *path], self.parents[above]
        self.logits[node] = under_grammar(self.logits[node], self.branch.request, path, ids)

    def sure(self, node: int) -> bool:
        """Whether the head may go on after this node; see DraftRequest.confidence."""
        if np.isneginf(self.logits[node]).all():
            return False  # a reduced vocabulary may have nothing that the grammar allows
        wanted = self.branch.request.confidence
        return not wanted or confidence(self.logits[node]) >= wanted


def read_level(head: FeatureHead, level: Sequence[tuple[Growth, list[int]]]) -> None:
    """What the head says after these nodes, in one pass; their parents were read before."""
    steps = []
    for growth, nodes in level:
        growth.fed += nodes
        fed, base = growth.fed, growth.branch.length
        place = {node: i for i, node in enumerate(fed)}
        head.truncate(growth.branch.slot, base)
        steps.append(
            Step(
                growth.branch.slot,
                np.array([growth.tokens[node] for node in fed], dtype=np.int64),
                rows=len(nodes),
                positions=base - 1 + np.array([growth.depth[node] for node in fed]),
                mask=ancestors([place.get(growth.parents[node], _ROOT) for node in fed]),
                hidden=True,
                features=np.stack([growth.features[growth.parents[node]] for node in fed]),
            )
        )
    for (growth, nodes), output in zip(level, head.forward(steps), strict=True):
        assert output.hidden is not None
        growth.logits |= dict(zip(nodes, output.logits, strict=True))
        for node in nodes:
            growth.mask(node, head.target_ids)
        growth.features |= dict(zip(nodes, output.hidden[-len(nodes) :], strict=True))


def grow_fixed(
    head: FeatureHead, branches: Sequence[Branch], choices: Sequence[Choice], vocab_size: int
) -> list[Proposal]:
    """These choices, no deeper than each request allows: the likeliest children of every node,
    or, where the request draws by chance, as many drawn without replacement."""
    parents, places = parents_of(choices)
    growths = _started(head, branches)
    nodes: list[dict[int, int]] = [{_ROOT: _ROOT} for _ in branches]  # of the choices -> grown
    for depth in range(1, 1 + max(depth for depth, _ in places)):
        level = []
        for growth, grown in zip(growths, nodes, strict=True):
            if depth > growth.branch.request.draft_len:
                continue
            above = [n for n in grown if (places[n][0] if n >= 0 else 0) == depth - 1]
            for node in above:
                kids = children(parents, node)
                if not kids or not growth.sure(grown[node]):
                    continue
                ranks = [places[kid][1] for kid in kids]
                found = _choose(head, growth, grown[node], ranks, vocab_size)
                grown |= dict(zip(kids, found, strict=False))
            new = [n for n in grown if n >= 0 and places[n][0] == depth]
            if inner := [grown[n] for n in new if children(parents, n)]:
                level.append((growth, inner))
        level = [(g, inner) for g, inner in level if depth < g.branch.request.draft_len]
        if level:
            read_level(head, level)
    return [_proposal(growth) for growth in growths]


def grow_dynamic(
    head: FeatureHead, branches: Sequence[Branch], top_k: int, total: int
) -> list[Proposal]:
    """EAGLE-2 (Li et al. 2024, section 4): expand the likeliest paths, keep the best `total` nodes.

    Chance has no part in it: at any temperature the children are the likeliest ones.
    """
    growths = _started(head, branches)
    value: list[dict[int, float]] = [{_ROOT: 0.0} for _ in branches]  # log P of the path
    frontier = [[_ROOT] for _ in branches]
    for depth in range(1, 1 + max((b.request.draft_len for b in branches), default=0)):
        level = []
        for i, growth in enumerate(growths):
            new = []
            for node in frontier[i]:
                if depth > growth.branch.request.draft_len or not growth.sure(node):
                    continue
                ids, logs = _likeliest(growth.logits[node], top_k)
                for token, log in zip(head.target_ids[ids].tolist(), logs.tolist(), strict=True):
                    child = growth.add(token, node)
                    value[i][child] = value[i][node] + log
                    new.append(child)
            frontier[i] = sorted(new, key=lambda n, v=value[i]: -v[n])[:top_k]  # type: ignore[misc]
            if frontier[i] and depth < growth.branch.request.draft_len:
                level.append((growth, frontier[i]))
        if not level:
            break
        read_level(head, level)
    return [_best(growth, v, total) for growth, v in zip(growths, value, strict=True)]


def _started(head: FeatureHead, branches: Sequence[Branch]) -> list[Growth]:
    growths = [Growth(branch) for branch in branches]
    for growth in growths:
        growth.mask(_ROOT, head.target_ids)
    return growths


def _choose(
    head: FeatureHead, growth: Growth, node: int, ranks: Sequence[int], vocab_size: int
) -> list[int]:
    """Add the children of a node; fewer where the distribution has no more tokens."""
    request, logits = growth.branch.request, growth.logits[node]
    sampling = request.sampling
    if sampling.greedy:
        order, _ = _likeliest(logits, max(ranks) + 1)
        return [growth.add(int(head.target_ids[order[rank]]), node) for rank in ranks]
    row = distribution(logits, sampling)
    whole = spread(row, head.target_ids, vocab_size)
    position = len(request.tokens) + (growth.depth[node] if node >= 0 else 0)
    added = []
    for sibling in range(len(ranks)):
        if not row.any():
            break
        chosen = draw(row, uniform(sampling.seed, position, Role.DRAFT, sibling))
        row[chosen] = 0.0
        added.append(growth.add(int(head.target_ids[chosen]), node))
        growth.probs.append(whole)
    return added


def _likeliest(
    logits: NDArray[np.float32],  # [D]
    count: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:  # [count] each, by falling probability
    """The likeliest tokens and the logarithms of their probabilities."""
    top = likeliest(logits, count)
    highest = float(logits.max())
    scale = highest + np.log(np.exp(logits - highest, dtype=np.float64).sum())
    return top, logits[top].astype(np.float64) - scale


def _best(growth: Growth, value: dict[int, float], total: int) -> Proposal:
    """The likeliest nodes; a parent is never less likely than its child and comes before it."""
    kept = sorted(sorted(range(len(growth.tokens)), key=lambda n: (-value[n], n))[:total])
    place = {node: i for i, node in enumerate(kept)}
    return Proposal(
        [growth.tokens[node] for node in kept],
        None,
        tuple(place.get(growth.parents[node], _ROOT) for node in kept),
    )


def _proposal(growth: Growth) -> Proposal:
    return Proposal(growth.tokens, growth.probs or None, tuple(growth.parents))
