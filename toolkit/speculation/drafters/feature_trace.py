"""How a feature head's drafts would stand over a known text: one pass per depth over all starts.

Depth 1 of start i follows the true pairs 0..i. Depth d continues with the true tokens (had one
before it not stood, depth d would not be reached) and the head's own features: its pairs attend to
the true pairs up to i and to the d - 1 before it on the same branch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.heads import FeatureHead
from toolkit.speculation.interfaces import LanguageModel, SamplingParams, Step
from toolkit.speculation.sampling import confidence, distribution
from toolkit.speculation.trace import UNRANKED, DraftTrace, TracedText, chance_to_stand
from toolkit.speculation.tree_trace import true_ranks

_CHUNK = 128  # tokens of the target's reading
_BLOCK = 64  # starts whose branches are fed together


def trace_features(
    head: FeatureHead,
    target: LanguageModel,
    text: TracedText,
    depth: int,
    least: float | None = None,
) -> DraftTrace:
    """P(a draft of depth d stands) for every start of `text`, and how sure the head is of it.

    Greedy drafts then go on with the head's own tokens: behind one that does not stand nothing
    can, but how far the head would go is told by what it would say there.
    """
    starts = len(text.output) - 1
    accept = np.zeros((starts, depth))
    sure = None if least is None else np.zeros((starts, depth))
    own = least is not None and text.sampling.greedy
    for start, d, logits, true in _branches(head, target, text, depth, own=own):
        if sure is not None:
            sure[start : start + len(logits), d] = [confidence(row) for row in logits]
        stands = _chances(head, logits[: len(true)], true, text.sampling)
        if text.target_probs is not None:
            after = start + 1 + d
            stands = chance_to_stand(stands, text.target_probs[after : after + len(true)])
        accept[start : start + len(true), d] = stands
    return DraftTrace(accept, np.full(starts, depth, dtype=np.int64), sure=sure)


def feature_ranks(
    head: FeatureHead, target: LanguageModel, text: TracedText, depth: int
) -> NDArray[np.int64]:  # [N, depth]
    """Of the true token at every depth from every start, among what the head says there."""
    found = np.full((len(text.output) - 1, depth), UNRANKED)
    for start, d, logits, true in _branches(head, target, text, depth):
        found[start : start + len(true), d] = true_ranks(logits[: len(true)], head.target_ids, true)
    return found


def _branches(
    head: FeatureHead, target: LanguageModel, text: TracedText, depth: int, *, own: bool = False
) -> Iterator[tuple[int, int, NDArray[np.float32], NDArray[np.int64]]]:
    """Block by block (first start, depth from 0, logits [S, D], true tokens [up to S]).

    Each branch goes on with the true token, or with its `own`.
    """
    tokens = np.array([*text.prompt, *text.output], dtype=np.int64)
    starts, before = len(text.output) - 1, len(text.prompt) - 1
    features = head.fuse(captured_states(target, tokens[:-2]))  # [before + starts, h]
    slot = head.open()
    try:
        read, start = 0, 0
        while start < starts:
            # Pair i is (tokens[i + 1], features[i]); start s drafts after pair `before + s`.
            first = before + start
            if first > read:
                before_it = tokens[read + 1 : first + 1]
                head.forward([Step(slot, before_it, 0, features=features[read:first])])
                read = first
            room = max(1, head.max_seq_len - first)
            size = max(1, min(starts - start, room // depth, _BLOCK))
            true_tokens = tokens[first + 1 :]
            block = _Block(true_tokens[:size], features[first : first + size], first)
            for d in range(min(depth, room)):
                logits = block.deeper(head, slot)
                true = true_tokens[d + 1 : d + 1 + size]
                yield start, d, logits, true
                if own:
                    true = head.target_ids[logits.argmax(axis=1)]
                # Past the end of the text there is no true token: what is fed decides nothing.
                block.tokens.append(np.resize(true, size) if len(true) else block.tokens[-1])
            start += size
    finally:
        head.close(slot)


class _Block:
    """The branches of some starts next to each other, fed again whole for every depth."""

    def __init__(
        self,
        tokens: NDArray[np.int64],  # [S] of the starts' own pairs
        features: NDArray[np.float32],  # [S, h] beside them
        length: int,  # of the head's cache before them
    ) -> None:
        self.tokens = [tokens]  # by depth, as the features
        self.size = len(features)
        self.length = length
        self.features = [features]  # by depth

    def deeper(self, head: FeatureHead, slot: int) -> NDArray[np.float32]:
        """Logits [S, D] of every start's next depth."""
        depth, size = len(self.features), self.size
        starts = np.arange(size)
        seen, own = np.tril(np.ones((size, size), np.bool_)), np.eye(size, dtype=np.bool_)
        nothing = np.zeros_like(own)
        mask = np.block(
            [
                [seen if to == 0 else own if to <= here else nothing for to in range(depth)]
                for here in range(depth)
            ]
        )
        positions = self.length + np.concatenate([starts + d for d in range(depth)])
        step = Step(
            slot,
            np.concatenate(self.tokens),
            rows=size,
            positions=np.minimum(positions, head.max_seq_len - 1),
            mask=mask,
            hidden=True,
            features=np.concatenate(self.features),
        )
        [output] = head.forward([step])
        head.truncate(slot, self.length)
        assert output.hidden is not None
        self.features.append(output.hidden[-size:])
        return output.logits


def captured_states(target: LanguageModel, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """The target's captured states of a text."""
    seq, found = target.open(), []
    try:
        for start in range(0, len(tokens), _CHUNK):
            piece = tokens[start : start + _CHUNK]
            [output] = target.forward([Step(seq, piece, rows=0, hidden=True)])
            assert output.hidden is not None
            found.append(output.hidden)
    finally:
        target.close(seq)
    return np.concatenate(found)


def _chances(
    head: FeatureHead,
    logits: NDArray[np.float32],  # [S, D]
    true: NDArray[np.int64],  # [S]
    sampling: SamplingParams,
) -> NDArray[np.float64]:  # [S] the head's probability of each true token
    if not len(true):
        return np.zeros(0)
    if sampling.greedy:
        chosen = head.target_ids[logits.argmax(axis=1)]
        return np.asarray(chosen == true, dtype=np.float64)
    drafted = np.stack([distribution(row, sampling) for row in logits])
    same = head.target_ids[None] == true[:, None]  # [S, D]
    return np.asarray((drafted * same).sum(axis=1), dtype=np.float64)
