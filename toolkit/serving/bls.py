"""The speculative loop over two served models: what our `tensorrt_llm_bls` runs for each request.

Text lengths, draft lengths and uniforms are those of `speculation.loop`, so a request gets the same
tokens from a target and a draft model behind Triton as from the loop in one process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter

from toolkit.errors import SpectoolError
from toolkit.serving.calls import Logits
from toolkit.speculation.draft_length import DraftLengthPolicy
from toolkit.speculation.grammar import Grammar
from toolkit.speculation.interfaces import Drafter, DraftRequest, SamplingParams
from toolkit.speculation.request import Active, Chunk, FinishReason, Request, check
from toolkit.speculation.stop import Decode, StopCondition

_ANY_VOCABULARY = 2**31  # the target checks that: only it knows its own


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens; without logits they are accepted by token match, which is exact too."""

    tokens: tuple[int, ...] = ()
    logits: Logits | None = None  # [len(tokens), V]


class DraftUnavailableError(SpectoolError):
    """The draft model failed; the request goes on without it."""


class Target(ABC):
    """The target model of one request."""

    @abstractmethod
    def verify(self, tokens: Sequence[int], draft: Draft) -> list[int]:
        """The new tokens of one verify step after `tokens`: accepted ones and one more."""

    @abstractmethod
    def extend(self, tokens: Sequence[int], count: int) -> list[int]:
        """Plain decoding: `count` tokens after `tokens`, fewer if the text ends."""

    @abstractmethod
    def release(self) -> None:
        """The request is over: what the model keeps for it may go."""


class DraftSource(ABC):
    """Where one request's drafts come from."""

    @abstractmethod
    def propose(self, tokens: Sequence[int], draft_len: int) -> Draft:
        """At most `draft_len` tokens to follow `tokens`; raises DraftUnavailableError."""

    def accept(self, tokens: Sequence[int], accepted: int) -> None:  # noqa: B027
        """What the verify step emitted, and how much of it was drafted."""

    def release(self) -> None:  # noqa: B027
        """The request is over."""


class LocalDraft(DraftSource):
    """A drafter that needs no model works where the loop is."""

    _SEQ = 0

    def __init__(
        self,
        drafter: Drafter,
        prompt: Sequence[int],
        sampling: SamplingParams,
        grammar: Grammar | None = None,
    ) -> None:
        self._drafter, self._sampling = drafter, sampling
        self._matcher = grammar.matcher() if grammar else None
        drafter.begin(self._SEQ, prompt)

    def propose(self, tokens: Sequence[int], draft_len: int) -> Draft:
        request = DraftRequest(self._SEQ, tokens, draft_len, self._sampling, matcher=self._matcher)
        [proposal] = self._drafter.propose([request])
        if self._matcher:
            proposal = proposal.within(self._matcher)
        return Draft(tuple(proposal.tokens))

    def accept(self, tokens: Sequence[int], accepted: int) -> None:
        self._drafter.accept(self._SEQ, tokens, accepted)
        if self._matcher:
            self._matcher.advance(tokens)

    def release(self) -> None:
        self._drafter.end(self._SEQ)


@dataclass
class BlsLoop:
    """Everything that the requests of one deployment share; each runs in a thread of its own."""

    policy: DraftLengthPolicy
    max_seq_len: int
    decode: Decode
    _running: int = field(default=0, init=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def run(
        self,
        request: Request,
        target: Target,
        draft: DraftSource | None,
        *,
        burst: int = 1,  # tokens of one call when there is no draft
        cancelled: Callable[[], bool] = lambda: False,
        draft_failed: Callable[[DraftUnavailableError], None] = lambda error: None,
        spent: Callable[[float, float], None] = lambda draft_s, verify_s: None,  # of a verify step
    ) -> Iterator[Chunk]:
        """The chunks of one request; both models are released however it ends."""
        try:
            self._count(1)
            state = self._begin(request, draft is not None)
            while state.speculates and draft is not None:
                if cancelled():
                    yield Chunk(state.id, [], 0, 0, "cancelled")
                    return
                started = perf_counter()
                try:
                    proposal = self._propose(state, draft)
                except DraftUnavailableError as error:
                    state.speculates = False
                    draft_failed(error)
                    break
                drafted = perf_counter()
                emitted = target.verify(state.tokens, proposal)
                if proposal.tokens:
                    spent(drafted - started, perf_counter() - drafted)
                chunk = self._emit(state, list(proposal.tokens), emitted)
                if not chunk.finish_reason:
                    draft.accept(chunk.tokens, chunk.accepted)
                yield chunk
                if chunk.finish_reason:
                    return
            yield from self._plain(state, target, burst, cancelled)
        finally:
            self._count(-1)
            target.release()
            if draft is not None:
                draft.release()

    def _count(self, change: int) -> None:
        with self._lock:
            self._running += change

    def _begin(self, request: Request, drafts: bool) -> Active:
        check(request, _ANY_VOCABULARY, self.max_seq_len)
        draft_len = self.policy.first() if request.draft_len is None else request.draft_len
        return Active(
            id=0,
            request=request,
            stop=StopCondition(request.end_tokens, request.stop_strings, self.decode),
            limit=min(len(request.prompt) + request.max_tokens, self.max_seq_len),
            draft_len=draft_len,
            speculates=drafts and draft_len > 0,
            tokens=list(request.prompt),
        )

    def _propose(self, state: Active, draft: DraftSource) -> Draft:
        """Nothing for the first token: it comes from reading the prompt."""
        # Each request plans alone: it takes the others, whom it does not see, for its like.
        running = max(self._running, 1)
        room = state.room(self.policy.plan([state] * running, running)[0])
        if not state.stats.prefill_tokens or room <= 0:
            return Draft()
        return draft.propose(state.tokens, room)

    def _plain(
        self, state: Active, target: Target, burst: int, cancelled: Callable[[], bool]
    ) -> Iterator[Chunk]:
        while not cancelled():
            count = min(burst, state.limit - len(state.tokens))
            chunk = self._emit(state, [], target.extend(state.tokens, count))
            yield chunk
            if chunk.finish_reason:
                return
        yield Chunk(state.id, [], 0, 0, "cancelled")

    def _emit(self, state: Active, drafted: list[int], emitted: list[int]) -> Chunk:
        """Cut at the first stop and at the limit, and count."""
        accepted = _common_prefix(drafted, emitted)
        tokens, stopped = state.stop.cut(emitted)
        accepted = min(accepted, len(tokens))
        state.tokens += tokens
        verified = state.count(len(tokens), len(drafted), accepted)
        reason: FinishReason | None = "stop" if stopped or not tokens else None
        if not stopped and len(state.tokens) >= state.limit:
            reason = "length"
        if verified and state.request.draft_len is None:
            state.draft_len = self.policy.following(state.draft_len, len(drafted), accepted)
        return Chunk(state.id, tokens, accepted, len(drafted), reason)


def _common_prefix(drafted: Sequence[int], emitted: Sequence[int]) -> int:
    """How many drafted tokens stood: a recovered token is never the one that it replaces."""
    pairs = zip(drafted, emitted, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(drafted), len(emitted)))
