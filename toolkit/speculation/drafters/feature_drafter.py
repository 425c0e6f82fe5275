"""Feature autoregression, what EAGLE-1, -2 and -3 have in common (Li et al. 2024, 2025).

The head reads pairs (x[i + 1], f[i]): a token, and the feature of the text before it. Where the
target has read the text, f comes from the target's own states; further on it is what the head
itself gave one token before. Pair i stands at position i of the head's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.drafters.feature_trace import trace_features
from toolkit.speculation.heads import FeatureHead
from toolkit.speculation.interfaces import (
    Drafter,
    DraftRequest,
    LanguageModel,
    Proposal,
    Step,
    StepOutput,
)
from toolkit.speculation.sampling import (
    Floats,
    Role,
    confidence,
    distribution,
    draw,
    most_likely,
    uniform,
)
from toolkit.speculation.trace import DraftTrace, TracedText

Features = NDArray[np.float32]


@dataclass(slots=True)
class Reader:
    """What the head has read of one sequence."""

    slot: int  # the head's sequence
    prompt: Sequence[int]
    read: int = 0  # pairs in the cache whose features are the target's
    unread: list[Features] = field(default_factory=list)  # [n, h] each, features that follow them


@dataclass(slots=True)
class Branch:
    """A sequence with its pairs read: from here on the head drafts."""

    request: DraftRequest
    slot: int
    length: int  # of the head's cache
    logits: NDArray[np.float32]  # [D] of the first draft token
    feature: Features  # [h] beside it


class FeatureDrafter(Drafter):
    """Reads what the target read, then drafts a chain; subclasses may grow trees instead."""

    reads_hidden = True
    has_confidence = True

    def __init__(self, head: FeatureHead, target: LanguageModel) -> None:
        self._head = head
        self._target = target
        self._ids = head.target_ids
        self._readers: dict[int, Reader] = {}

    def begin(self, seq: int, prompt: Sequence[int]) -> None:
        self._readers[seq] = Reader(self._head.open(), prompt)

    def observe(self, seq: int, hidden: Features) -> None:
        reader = self._readers[seq]
        reader.unread.append(self._head.fuse(hidden))
        # While the prompt is read, its next tokens are known: that reading belongs to prefill.
        known = len(reader.prompt) - 1 - reader.read
        if known > 0:
            self._read([(reader, reader.prompt[1:])], limit=known)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        readers = [self._readers[request.seq] for request in requests]
        texts = [(r, q.tokens[1:]) for r, q in zip(readers, requests, strict=True)]
        outputs = self._read(texts)
        branches = [
            Branch(request, reader.slot, reader.read, output.logits[-1], _last(output))
            for request, reader, output in zip(requests, readers, outputs, strict=True)
        ]
        return self._grow(branches)

    def end(self, seq: int) -> None:
        if reader := self._readers.pop(seq, None):
            self._head.close(reader.slot)

    def trace(self, text: TracedText, depth: int) -> DraftTrace:
        return trace_features(self._head, self._target, text, depth)

    def _read(
        self, texts: Sequence[tuple[Reader, Sequence[int]]], limit: int | None = None
    ) -> list[StepOutput]:
        """Bring each reader's cache up to what the target has read; drafts in it are forgotten."""
        steps = []
        for reader, tokens in texts:
            features = np.concatenate(reader.unread)
            take = len(features) if limit is None else min(limit, len(features))
            reader.unread = [features[take:]] if take < len(features) else []
            self._head.truncate(reader.slot, reader.read)
            fed = np.asarray(tokens[reader.read : reader.read + take], dtype=np.int64)
            steps.append(Step(reader.slot, fed, hidden=True, features=features[:take]))
            reader.read += take
        return self._head.forward(steps)

    def _grow(self, branches: Sequence[Branch]) -> list[Proposal]:
        """A chain for each, one token deeper in every pass."""
        chains = [Chain(branch, self._ids, self._target.vocab_size) for branch in branches]
        drafting = [chain for chain in chains if chain.extend()]
        while drafting:
            steps = [
                Step(
                    chain.branch.slot,
                    np.array(chain.tokens[-1:], dtype=np.int64),
                    hidden=True,
                    features=chain.branch.feature[None],
                )
                for chain in drafting
            ]
            for chain, output in zip(drafting, self._head.forward(steps), strict=True):
                chain.branch.logits, chain.branch.feature = output.logits[-1], _last(output)
            drafting = [chain for chain in drafting if chain.extend()]
        return [chain.proposal() for chain in chains]


class Chain:
    """A proposal in the making, one token after the other."""

    def __init__(self, branch: Branch, ids: NDArray[np.int64], vocab_size: int) -> None:
        self.branch = branch
        self.tokens: list[int] = []
        self._ids = ids
        self._vocab_size = vocab_size
        self._probs: list[Floats] = []

    def extend(self) -> bool:
        """Choose the next token, from what the head last said; True when one may follow it."""
        request = self.branch.request
        logits = under_grammar(self.branch.logits, request, self.tokens, self._ids)
        if np.isneginf(logits).all():
            return False  # a reduced vocabulary may have nothing that the grammar allows
        if request.confidence and confidence(logits) < request.confidence:
            return False
        sampling = request.sampling
        if sampling.greedy:
            [chosen] = most_likely(logits[None])
        else:
            probs = distribution(logits, sampling)
            position = len(request.tokens) + len(self.tokens)
            chosen = draw(probs, uniform(sampling.seed, position, Role.DRAFT))
            self._probs.append(spread(probs, self._ids, self._vocab_size))
        self.tokens.append(int(self._ids[chosen]))
        return len(self.tokens) < request.draft_len

    def proposal(self) -> Proposal:
        return Proposal(self.tokens, np.stack(self._probs) if self._probs else None)


def under_grammar(
    logits: NDArray[np.float32],  # [D]
    request: DraftRequest,
    drafted: Sequence[int],  # behind the request's text
    ids: NDArray[np.int64],  # [D] of the target's vocabulary
) -> NDArray[np.float32]:  # [D]
    """-inf where the request's grammar, if it has one, allows no token of the head's vocabulary."""
    if request.matcher is None:
        return logits
    mask = request.matcher.mask(drafted)
    return np.where(np.append(mask, False)[np.minimum(ids, len(mask))], logits, -np.inf)


def spread(
    probs: Floats,  # [D]
    ids: NDArray[np.int64],  # [D]
    vocab_size: int,
) -> Floats:  # [V]
    """A distribution over the head's vocabulary as one over the target's."""
    row: Floats = np.zeros(vocab_size)
    row[ids] = probs
    return row


def _last(output: StepOutput) -> Features:
    assert output.hidden is not None
    last: Features = output.hidden[-1]
    return last
