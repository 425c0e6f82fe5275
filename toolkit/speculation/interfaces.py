"""The words that target, drafters and the loop share.

Shapes: T tokens, R rows, V vocabulary, H hidden. A `LanguageModel` holds one KV cache per open
sequence. Rolling back is saying a smaller length: `truncate` is O(1), and the next `forward`
overwrites what was rejected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.recipe.schema import ModelSpec, Speculation
from toolkit.speculation.embedded import CpuSide
from toolkit.speculation.grammar import Matcher
from toolkit.speculation.llmapi import LlmApiSide
from toolkit.speculation.migration import MigrationSide
from toolkit.speculation.tensorrt import TensorrtSide
from toolkit.speculation.token_tree import depths
from toolkit.speculation.trace import DraftTrace, TracedText


@dataclass(frozen=True, slots=True)
class Step:
    """New tokens of one sequence for one forward pass."""

    seq: int
    tokens: NDArray[np.int64]  # [T], T >= 1
    rows: int = 1  # logits are wanted for the last R of them; 0: none
    positions: NDArray[np.int64] | None = None  # [T] absolute; default: length, length + 1, ...
    mask: NDArray[np.bool_] | None = None  # [T, T] row attends to column; default: causal
    hidden: bool = False  # also return the captured hidden states of all T tokens
    features: NDArray[np.float32] | None = None  # [T, H] what a drafting head reads beside tokens


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one forward pass says about one sequence."""

    logits: NDArray[np.float32]  # [R, V], V = the unpadded vocabulary
    hidden: NDArray[np.float32] | None = None  # [T, C * H] of the C layers that it captures


class LanguageModel(Protocol):
    """A decoder with a KV cache per open sequence; a batch may be ragged in every way."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_seq_len(self) -> int: ...

    @property
    def max_batch_size(self) -> int: ...

    @property
    def kv_capacity(self) -> int:
        """Tokens that its KV cache holds, of all sequences together."""
        ...

    @property
    def kv_usage(self) -> float:
        """The part of its KV cache that open sequences hold, 0..1."""
        ...

    def open(self) -> int:
        """A new, empty sequence; raises CapacityError when no slot is free."""
        ...

    def close(self, seq: int) -> None:
        """Free the sequence's KV blocks."""
        ...

    def length(self, seq: int) -> int:
        """Tokens whose keys and values are in the cache."""
        ...

    def adopt(self, seq: int, tokens: Sequence[int]) -> int:
        """Let an empty sequence begin with what the cache knows of this text; returns how many
        of its tokens need not be fed any more."""
        ...

    def share(self, seq: int, tokens: Sequence[int]) -> None:
        """The sequence begins with these tokens, which have been fed: others may adopt them."""
        ...

    def truncate(self, seq: int, length: int) -> None:
        """Forget every token from position `length` on. O(1)."""
        ...

    def keep(self, seq: int, base: int, rows: Sequence[int]) -> None:
        """After a tree: of the tokens fed from position `base`, keep these rows, in this order."""
        ...

    def forward(self, steps: Sequence[Step]) -> list[StepOutput]:
        """Append every step's tokens to its sequence and return its logits, in the same order."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn from logits; `seed` is always a number by the time the loop sees it."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class Encoder(Hashable, Protocol):
    """What turns text into the target's tokens."""

    vocab_size: int

    def encode(self, text: str, add_special: bool = True) -> list[int]: ...


_TRACED = -1  # the sequence of a trace: no loop numbers one so


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence that wants a proposal now."""

    seq: int  # the id under which the loop began it
    tokens: Sequence[int]  # prompt and output so far; the last one is not in the target's KV yet
    draft_len: int  # draft at most this many, one after the other; a tree is at most this deep
    sampling: SamplingParams
    # Stop before a token that the drafter's likeliest choice for is less probable than this. The
    # distribution decides, never the token drawn from it: see draft_length.py.
    confidence: float = 0.0
    # mask(draft so far) goes over the draft's own distribution, before everything else.
    matcher: Matcher | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens and the distributions they were drawn from."""

    tokens: list[int]  # a chain of at most draft_len, or the nodes of a tree; may be empty
    # [len(tokens), V] after temperature, top-k and top-p. None: drafted without chance (greedy,
    # lookup), so each distribution is one-hot at the drafted token. Children of one node were
    # drawn in their order without replacement, and all have the row of the first draw.
    probs: NDArray[np.float64] | Sequence[NDArray[np.float64]] | None = None
    # Of each node, earlier in `tokens`; -1: it follows the text. None: a chain.
    parents: tuple[int, ...] | None = None
    # Of a tree, the last so many nodes are guesses that are never accepted: the drafter wants to
    # hear what the target would choose after them (`Drafter.chosen`).
    probes: int = 0

    @property
    def drafted(self) -> int:
        """Tokens or nodes that may be accepted."""
        return len(self.tokens) - self.probes

    @property
    def depth(self) -> int:
        """Tokens of the longest path: what one verify step can accept."""
        if self.parents is None:
            return len(self.tokens)
        return max(depths(self.parents[: self.drafted]), default=0)

    def within(self, matcher: Matcher) -> Proposal:
        """What was drafted without chance ends where the grammar does: that saves the target work.

        A token that was drawn stays: throwing it away for what it is would bias the text.
        """
        if self.probs is not None:
            return self
        if self.parents is None:
            return self.first(matcher.prefix(self.tokens))
        place, paths = {-1: -1}, {-1: list[int]()}  # of the text and of every node that stays
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            path = [*paths.get(parent, []), token]
            probe = node >= self.drafted  # never accepted, so that no grammar is in its way
            if parent in place and (probe or matcher.allows(path[:-1], token)):
                place[node], paths[node] = len(place) - 1, path
        kept = list(place)[1:]
        return Proposal(
            [self.tokens[node] for node in kept],
            parents=tuple(place[self.parents[node]] for node in kept),
            probes=sum(node >= self.drafted for node in kept),
        )

    def first(self, count: int) -> Proposal:
        """Its first tokens: parents stand before their children, so that they are a tree too."""
        if len(self.tokens) <= count:
            return self
        return Proposal(
            self.tokens[:count],
            None if self.probs is None else self.probs[:count],
            None if self.parents is None else self.parents[:count],
            max(0, count - self.drafted),
        )


class Drafter(CpuSide, TensorrtSide, MigrationSide, LlmApiSide, ABC):
    """One way to draft. Everything that differs by drafter stands in the drafter's own file."""

    Options: ClassVar[type[Speculation]]
    # Whether it reads the target's hidden states: then `observe` is called.
    reads_hidden: ClassVar[bool] = False
    # Whether it knows how sure it is of a draft, and heeds `DraftRequest.confidence`.
    has_confidence: ClassVar[bool] = False
    # Whether it learns from the target's choices: then `chosen` is called.
    reads_choices: ClassVar[bool] = False

    @classmethod
    def unsupported_on(cls, backend: str, version: str) -> str | None:
        """Why this drafter cannot run there, in words; None when it can."""
        return None

    @classmethod
    def posterior_threshold(cls, options: Speculation) -> float | None:
        """Epsilon of typical acceptance, see typical.py; None: the target's own distribution."""
        return None

    @classmethod
    def models(cls, options: Speculation, target: ModelSpec) -> dict[str, ModelSpec]:
        """Role -> model that must be converted and built besides the target."""
        return {}

    @classmethod
    @abstractmethod
    def create(cls, options: Speculation, models: Mapping[str, LanguageModel]) -> Drafter:
        """The drafter at work, with the models it asked for (by role)."""

    def prepare(self, encoder: Encoder) -> None:
        """Once, before any sequence, with the target's tokenizer: read what is text so far."""

    def begin(self, seq: int, prompt: Sequence[int]) -> None:
        """A sequence starts; its prompt has been or is being read by the target."""

    @abstractmethod
    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """A proposal for each request, in the same order, drafted together where that is faster."""

    def observe(self, seq: int, hidden: NDArray[np.float32]) -> None:
        """Captured hidden states [n, C * H] of the next n tokens of the text that the target read.

        Before `accept` of the step that read them; every token comes once, in order.
        """

    def chosen(self, seq: int, tokens: Sequence[int]) -> None:
        """The target's likeliest token after the text, and after each node of the last proposal."""

    def accept(self, seq: int, tokens: Sequence[int], accepted: int) -> None:
        """`tokens` were emitted by a verify step; the first `accepted` of them were drafted."""

    def end(self, seq: int) -> None:
        """The sequence is over; forget it."""

    @classmethod
    def untraceable(cls, options: Speculation, greedy: bool) -> str | None:
        """Why no reading of a text tells how its drafts would stand, in words."""
        return None

    def trace(self, text: TracedText, depth: int, least: float | None = None) -> DraftTrace:
        """How often drafts of up to `depth` tokens would stand, from every start in `text`.

        With `least`, also how sure the drafter is of them where `has_confidence`; from a draft on
        that it is less sure of than that, nobody wants to know.

        By default a replay: propose at every token of the text and compare. That is exact for
        drafters that leave nothing to chance; one that draws its tokens answers for itself.
        """
        starts = len(text.output) - 1
        accept, offered = np.zeros((starts, depth)), np.zeros(starts, dtype=np.int64)
        self.begin(_TRACED, text.prompt)
        try:
            tokens = [*text.prompt, text.output[0]]
            for start, following in enumerate(text.output[1:]):
                request = DraftRequest(_TRACED, tokens, depth, text.sampling)
                [proposal] = self.propose([request])
                if proposal.probs is not None:
                    raise InputError(
                        f"{type(self).__name__} draws its drafts by chance and has no trace of its "
                        "own; trace it greedily (--temperature 0), or use --mode grid"
                    )
                true = text.output[start + 1 :]
                offered[start] = len(proposal.tokens)
                for place, (token, wanted) in enumerate(zip(proposal.tokens, true, strict=False)):
                    accept[start, place] = token == wanted
                tokens.append(following)
                self.accept(_TRACED, [following], 0)
            return DraftTrace(accept, offered)
        finally:
            self.end(_TRACED)


@dataclass(slots=True)
class SpeculationStats:
    """Counts of one request; every rate is derived, so counts of many requests simply add."""

    prefill_tokens: int = 0  # tokens that prefill emitted: 1 once it ran
    output_tokens: int = 0
    verify_steps: int = 0
    drafted_per_step: list[int] = field(default_factory=list)
    accepted_per_step: list[int] = field(default_factory=list)
    ttft_ns: int = 0
    e2e_ns: int = 0
    chunk_ns: list[int] = field(default_factory=list)  # arrival of each chunk after submission

    @property
    def draft_tokens(self) -> int:
        return sum(self.drafted_per_step)

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted_per_step)

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens, 0..1; nan when nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else float("nan")

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify step, the bonus or recovered token included."""
        return 1 + self.accepted_tokens / self.verify_steps if self.verify_steps else float("nan")

    @property
    def tpot_ns(self) -> float:
        """Nanoseconds per output token after the first; nan for fewer than two tokens."""
        if self.output_tokens < 2:
            return float("nan")
        return (self.e2e_ns - self.ttft_ns) / (self.output_tokens - 1)
