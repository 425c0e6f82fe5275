"""One call to an LLM model, and its state while the engine works on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import SpectoolError
from toolkit.serving.matchers import GuidedText
from toolkit.serving.sequences import Cached
from toolkit.speculation.grammar import Grammar, masked_rows
from toolkit.speculation.interfaces import SamplingParams, Step
from toolkit.speculation.sampling import Role, draw, probabilities, uniform, uniforms
from toolkit.speculation.verify import verify, verify_greedy

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What TensorRT-LLM's `tensorrt_llm` model is asked: all text so far, and how to go on."""

    input_ids: tuple[int, ...]
    request_output_len: int
    sampling: SamplingParams
    draft_input_ids: tuple[int, ...] = ()
    draft_logits: Logits | None = None  # [drafted, V]; None: accept by token match
    end_ids: frozenset[int] = frozenset()
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    return_logits: bool = False
    request_id: str = ""
    grammar: Grammar | None = None  # rules what follows the first `guide_begins` tokens
    guide_begins: int = 0


@dataclass(frozen=True, slots=True)
class Emission:
    """The answer to one call: new tokens, and what they were chosen from if it asked for that."""

    tokens: list[int]
    logits: Logits | None  # [len(tokens), V]
    accepted: int
    drafted: int


class Sink(Protocol):
    """Where the answer to one call goes; used by the engine's thread."""

    def send(self, emission: Emission) -> None: ...

    def fail(self, error: SpectoolError) -> None: ...

    def cancelled(self) -> bool: ...


@dataclass(slots=True, eq=False)
class ActiveCall:
    """A call with a sequence: what it has read and what it has said."""

    call: Call
    sink: Sink
    cached: Cached
    role: Role  # which uniforms choose plain tokens: a draft's must not be the target's
    max_seq_len: int
    guided: GuidedText | None = None  # stands behind the last token
    tokens: list[int] = field(default_factory=list)  # emitted
    kept: list[Logits] = field(default_factory=list)
    checked: float = field(default_factory=monotonic)
    fed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # last step

    @property
    def position(self) -> int:
        """Absolute position of the next token."""
        return len(self.call.input_ids) + len(self.tokens)

    def step(self, max_tokens: int) -> Step:
        """What to feed now: unread text, at last with the draft behind it."""
        text = [*self.call.input_ids, *self.tokens][len(self.cached.tokens) :]
        feed = [*text, *self.call.draft_input_ids]
        rows = len(self.call.draft_input_ids) + 1
        if len(feed) > max(max_tokens, rows):
            feed, rows = feed[: min(max_tokens, len(feed) - rows)], 0
        self.fed = np.asarray(feed, dtype=np.int64)
        return Step(self.cached.seq, self.fed, rows=rows)

    def take(self, logits: Logits) -> Emission | None:
        """Choose from the rows of a step; the answer, once it is complete."""
        self.cached.tokens = np.concatenate([self.cached.tokens, self.fed])
        if not len(logits):
            return None
        if self.guided:
            rows = self.guided.matcher.rows(self.call.draft_input_ids)
            logits = masked_rows(logits, rows)
        logits = self._without_end(logits)
        tokens, accepted = self._choose(logits)
        drafted = len(self.call.draft_input_ids)
        ended = self._ends(tokens)
        tokens = tokens[:ended] if ended else tokens
        if self.guided:
            self.guided.advance(tokens)
        self.tokens += tokens
        if self.call.return_logits:
            self.kept.append(logits[: len(tokens)])
        # Verification answers after one step: only the caller can draft again.
        if not (ended or drafted or self._full()):
            return None
        kept = np.concatenate(self.kept) if self.kept else None
        return Emission(self.tokens, kept, min(accepted, len(tokens)), drafted)

    def _choose(self, logits: Logits) -> tuple[list[int], int]:
        call, drafted = self.call, len(self.call.draft_input_ids)
        sampling = call.sampling
        if sampling.greedy:
            return verify_greedy(call.draft_input_ids, logits.argmax(axis=1).tolist())
        probs = probabilities(logits, sampling)
        if not drafted:
            return [draw(probs[0], uniform(sampling.seed, self.position, self.role))], 0
        draft = call.draft_logits
        return verify(
            call.draft_input_ids,
            None if draft is None else probabilities(_fit(draft, probs.shape[1]), sampling),
            probs,
            uniforms(sampling.seed, self.position, drafted, Role.ACCEPT),
            uniforms(sampling.seed, self.position, drafted + 1, Role.EMIT),
        )

    def _without_end(self, logits: Logits) -> Logits:
        """Make the end tokens impossible where `min_tokens` forbids them."""
        rows = min(self.call.min_tokens - len(self.tokens), len(logits))
        if rows <= 0 or not self.call.end_ids:
            return logits
        without = logits.copy()
        ends = [token for token in self.call.end_ids if token < logits.shape[1]]
        without[:rows, ends] = -np.inf
        # A grammar may leave nothing else.
        stuck = np.isneginf(without).all(axis=1, keepdims=True)
        return np.where(stuck, logits, without)

    def _ends(self, tokens: list[int]) -> int:
        """How many of the new tokens there are until one ends the text; 0: none does."""
        text = [*self.tokens, *tokens]
        first = len(self.tokens) + 1
        for count in range(first, len(text) + 1):
            stopped = any(
                len(stop) <= count and tuple(text[count - len(stop) : count]) == stop
                for stop in self.call.stop_sequences
            )
            if stopped or text[count - 1] in self._end_ids:
                return count - len(self.tokens)
        return 0

    @property
    def _end_ids(self) -> frozenset[int]:
        grammar = self.call.grammar
        return self.call.end_ids | (grammar.end_tokens if grammar else frozenset())

    def _full(self) -> bool:
        return len(self.tokens) >= self.call.request_output_len or self.position >= self.max_seq_len


def _fit(
    logits: Logits,  # [drafted, the draft's V]
    vocab_size: int,
) -> Logits:  # [drafted, V]
    """Drop or add the padding in which two vocabularies of one tokenizer may differ."""
    missing = max(vocab_size - logits.shape[1], 0)
    padded = np.pad(logits, ((0, 0), (0, missing)), constant_values=-np.inf)
    return padded[:, :vocab_size]
