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

from toolkit.speculation.draft_chain import DraftChain
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

    def trace(self, text: TracedText, depth: int, least: float | None = None) -> DraftTrace:
        return trace_features(self._head, self._target, text, depth, least)

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
        chains = [
            (branch, DraftChain(branch.request, self._target.vocab_size, self._ids))
            for branch in branches
        ]
        drafting = _extended(chains)
        while drafting:
            steps = [
                Step(
                    branch.slot,
                    np.array(chain.tokens[-1:], dtype=np.int64),
                    hidden=True,
                    features=branch.feature[None],
                )
                for branch, chain in drafting
            ]
            for (branch, _), output in zip(drafting, self._head.forward(steps), strict=True):
                branch.logits, branch.feature = output.logits[-1], _last(output)
            drafting = _extended(drafting)
        return [chain.proposal() for _, chain in chains]


def _extended(
    chains: Sequence[tuple[Branch, DraftChain]],
) -> list[tuple[Branch, DraftChain]]:
    """Those that got another token from what the head last said and may get one more."""
    return [
        (branch, chain)
        for branch, chain in chains
        if chain.extend(branch.logits) and len(chain.tokens) < branch.request.draft_len
    ]


def _last(output: StepOutput) -> Features:
    assert output.hidden is not None
    last: Features = output.hidden[-1]
    return last
