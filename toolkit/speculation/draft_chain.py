"""A chain of draft tokens in the making, whatever model says what may come next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.grammar import masked
from toolkit.speculation.interfaces import DraftRequest, Proposal
from toolkit.speculation.sampling import (
    Floats,
    Role,
    confidence,
    distribution,
    draw,
    most_likely,
    uniform,
)

Ids = NDArray[np.int64]  # [D] the target's token for each of a draft vocabulary


class DraftChain:
    """Chooses one token after the other, as the target would: greedily, or with its filters."""

    def __init__(
        self,
        request: DraftRequest,
        vocab_size: int,  # the target's
        ids: Ids | None = None,  # None: the draft's tokens are the target's first D
    ) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.sure: list[float] = []  # of each token, and of the one it stopped before; when asked
        self._vocab_size = vocab_size
        self._ids = ids
        self._probs: list[Floats] = []

    def extend(
        self,
        logits: NDArray[np.float32],  # [D]
    ) -> bool:
        """Choose the next token. False: not sure enough, or nothing that the grammar allows of a
        smaller vocabulary; nothing was chosen."""
        request, sampling = self.request, self.request.sampling
        logits = under_grammar(logits, request, self.tokens, self._ids)
        if request.matcher and np.isneginf(logits).all():
            return False
        if request.confidence:
            self.sure.append(confidence(logits))
            if self.sure[-1] < request.confidence:
                return False
        if sampling.greedy:
            [chosen] = most_likely(logits[None])
        else:
            probs = distribution(logits, sampling)
            position = len(request.tokens) + len(self.tokens)
            chosen = draw(probs, uniform(sampling.seed, position, Role.DRAFT))
            self._probs.append(spread(probs, self._ids, self._vocab_size))
        self.tokens.append(chosen if self._ids is None else int(self._ids[chosen]))
        return True

    def proposal(self) -> Proposal:
        return Proposal(self.tokens, np.stack(self._probs) if self._probs else None)


def under_grammar(
    logits: NDArray[np.float32],  # [D]
    request: DraftRequest,
    drafted: Sequence[int],  # behind the request's text
    ids: Ids | None,
) -> NDArray[np.float32]:  # [D]
    """-inf where the request's grammar, if it has one, does not allow a token."""
    if request.matcher is None:
        return logits
    mask = request.matcher.mask(drafted)
    if ids is None:
        return masked(logits, mask)
    return np.where(np.append(mask, False)[np.minimum(ids, len(mask))], logits, -np.inf)


def spread(
    probs: Floats,  # [D]
    ids: Ids | None,
    vocab_size: int,
) -> Floats:  # [V]
    """A distribution over a draft vocabulary as one over the target's: the rest has no chance."""
    if ids is None and len(probs) == vocab_size:
        return probs
    row: Floats = np.zeros(vocab_size)
    row[slice(len(probs)) if ids is None else ids] = probs
    return row
