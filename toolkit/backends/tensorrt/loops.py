"""Generation on engines, with the loop's words: submit, step, chunks, counts.

`EngineLoop`    the engine drafts and verifies by itself (or decodes plainly); answers are streamed
`ExternalLoop`  drafts come from outside: each step asks the target anew, with the drafts attached,
                and relies on the reuse of KV blocks for everything that it has read before
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Protocol

from toolkit.backends.tensorrt.drafts import Drafts, answers_to
from toolkit.backends.tensorrt.executor import Answer, Draft
from toolkit.errors import InputError
from toolkit.speculation.draft_length import DraftLengthPolicy
from toolkit.speculation.generation import GenerationLoop
from toolkit.speculation.interfaces import DraftRequest, SamplingParams, SpeculationStats
from toolkit.speculation.request import Active, Chunk, FinishReason, Request, check, rooms
from toolkit.speculation.stop import Decode, StopCondition


class Executor(Protocol):
    """What takes requests and streams answers: an engine, or a deployment of the LLM API."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_seq_len(self) -> int: ...

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams,
        *,
        stop_tokens: frozenset[int] = frozenset(),
        streaming: bool = False,
    ) -> int: ...

    def wait(self) -> list[Answer]: ...

    def cancel(self, request: int) -> None: ...


class VerifyingExecutor(Executor, Protocol):
    """An engine that takes drafts with its requests."""

    @property
    def max_draft_len(self) -> int: ...

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams,
        *,
        stop_tokens: frozenset[int] = frozenset(),
        streaming: bool = False,
        draft: Draft | None = None,
    ) -> int: ...


class ExecutorLoop(GenerationLoop):
    """What both loops share. Not thread-safe: one thread submits, steps and cancels."""

    def __init__(self, target: Executor, *, decode: Decode | None = None) -> None:
        super().__init__()
        self._target = target
        self._decode = decode
        self._running: dict[int, Active] = {}
        self._next_id = 0

    @property
    def active(self) -> int:
        return len(self._running)

    def submit(self, request: Request) -> int:
        """Queue a request; the executor batches it in flight."""
        check(request, self._target.vocab_size, self._target.max_seq_len)
        draft_len = self._first_draft_len(request)
        state = Active(
            id=self._next_id,
            request=request,
            stop=StopCondition(request.stop_tokens, request.stop_strings, self._decode),
            limit=min(len(request.prompt) + request.max_tokens, self._target.max_seq_len),
            draft_len=draft_len,
            speculates=draft_len > 0,
            tokens=list(request.prompt),
        )
        self._next_id += 1
        self._stats[state.id] = state.stats
        self._running[state.id] = state
        self._begin(state)
        return state.id

    def cancel(self, request: int) -> Chunk | None:
        """End a request; None when it was already over."""
        state = self._running.pop(request, None)
        if state is None:
            return None
        self._forsake(state)
        return Chunk(request, [], 0, 0, "cancelled")

    def close(self) -> None:
        """Cancel everything."""
        for request in list(self._running):
            self.cancel(request)

    def step(self) -> list[Chunk]:
        """The next chunks. An exception ends every request and leaves the loop usable."""
        try:
            return self._advance() if self._running else []
        except BaseException:
            self.close()
            raise

    def _ended(
        self, state: Active, stopped: bool, reason: FinishReason | None
    ) -> FinishReason | None:
        if stopped:
            return "stop"
        return "length" if reason is None and len(state.tokens) >= state.limit else reason

    @abstractmethod
    def _first_draft_len(self, request: Request) -> int: ...

    @abstractmethod
    def _begin(self, state: Active) -> None: ...

    @abstractmethod
    def _advance(self) -> list[Chunk]: ...

    @abstractmethod
    def _forsake(self, state: Active) -> None: ...


class EngineLoop(ExecutorLoop):
    """Each answer is one iteration: a draft of `path_len` tokens, some of which stood."""

    def __init__(self, target: Executor, *, path_len: int, decode: Decode | None = None) -> None:
        super().__init__(target, decode=decode)
        self._path_len = path_len  # 0: plain decoding
        self._by_executor: dict[int, Active] = {}
        self._iterations: dict[int, int] = {}  # by our id

    def _first_draft_len(self, request: Request) -> int:
        if request.draft_len not in (None, self._path_len):
            raise InputError(
                f"draft_len {request.draft_len}: this engine always drafts {self._path_len} "
                "token(s) a step; for plain decoding build the recipe with drafter: none"
            )
        return self._path_len

    def _begin(self, state: Active) -> None:
        request = state.request
        name = self._target.submit(
            request.prompt,
            state.limit - len(request.prompt),
            request.sampling,
            stop_tokens=request.stop_tokens,
            streaming=True,
        )
        self._by_executor[name] = state
        self._iterations[state.id] = 0

    def _advance(self) -> list[Chunk]:
        while True:
            answers = self._target.wait()
            chunks = [
                self._take(answer) for answer in answers if answer.request in self._by_executor
            ]
            if chunks:  # else all of them were late answers to cancelled requests
                return chunks

    def _take(self, answer: Answer) -> Chunk:
        state = self._by_executor[answer.request]
        tokens, stopped = state.stop.cut(answer.tokens)
        steps = max(answer.iterations - self._iterations[state.id], 1)
        self._iterations[state.id] = answer.iterations
        state.tokens += tokens
        accepted = drafted = 0
        for size in _sizes(len(tokens), steps):
            if state.count(size, self._path_len, size - 1):
                accepted, drafted = accepted + size - 1, drafted + self._path_len
        state.stamp(perf_counter_ns())
        reason = self._ended(state, stopped, answer.reason)
        if reason:
            if answer.counts:
                _reconcile(state.stats, *answer.counts)
            self._running.pop(state.id, None)
            self._drop(answer.request, cancel=answer.reason is None)
        return Chunk(state.id, tokens, accepted, drafted, reason)

    def _forsake(self, state: Active) -> None:
        names = [name for name, other in self._by_executor.items() if other is state]
        for name in names:
            self._drop(name, cancel=True)

    def _drop(self, name: int, *, cancel: bool) -> None:
        self._iterations.pop(self._by_executor.pop(name).id)
        if cancel:
            self._target.cancel(name)


def _sizes(tokens: int, steps: int) -> list[int]:
    """Tokens of each step; streaming gives one step at a time, a slow reader several."""
    steps = min(steps, tokens)
    return [tokens // steps + (index < tokens % steps) for index in range(steps)] if steps else []


def _reconcile(stats: SpeculationStats, accepted: int, drafted: int) -> None:
    """Draft no more than the engine says it drafted: its first and last drafts may be short."""
    if accepted != stats.accepted_tokens:
        return  # cut by a stop: the engine counts tokens that nobody saw
    surplus = stats.draft_tokens - drafted
    for index, stood in enumerate(stats.accepted_per_step):
        less = min(max(surplus, 0), stats.drafted_per_step[index] - stood)
        stats.drafted_per_step[index] -= less
        surplus -= less


class ExternalLoop(ExecutorLoop):
    """One round of drafts and one of the target for all active requests together."""

    def __init__(
        self,
        target: VerifyingExecutor,
        drafts: Drafts | None,
        policy: DraftLengthPolicy,
        *,
        decode: Decode | None = None,
    ) -> None:
        super().__init__(target, decode=decode)
        self._engine = target
        self._drafts = drafts
        self._policy = policy

    def _first_draft_len(self, request: Request) -> int:
        draft_len = self._policy.first() if request.draft_len is None else request.draft_len
        if draft_len > self._engine.max_draft_len:
            raise InputError(
                f"draft_len {draft_len}: the target engine takes at most "
                f"{self._engine.max_draft_len} draft tokens; build it with a larger "
                "speculation.max_draft_len"
            )
        return draft_len if self._drafts else 0

    def _begin(self, state: Active) -> None:
        if state.speculates and self._drafts:
            self._drafts.begin(state.id, state.request.prompt)

    def _advance(self) -> list[Chunk]:
        drafts = self._propose()
        asked: dict[int, Active] = {}
        for state in self._running.values():
            draft = drafts.get(state.id)
            name = self._engine.submit(
                state.tokens,
                (len(draft.tokens) if draft else 0) + 1,
                state.request.sampling,
                stop_tokens=state.request.stop_tokens,
                draft=draft,
            )
            asked[name] = state
        return [
            self._take(asked[name], answer, drafts.get(asked[name].id))
            for name, answer in answers_to(self._engine, [*asked]).items()
        ]

    def _propose(self) -> dict[int, Draft]:
        """By request; the first step of a request reads its prompt without a draft."""
        started = [state for state in self._running.values() if state.started]
        room = rooms(self._policy, started, len(self._running))
        requests = [
            DraftRequest(state.id, state.tokens, room[state.id], state.request.sampling)
            for state in started
            if room[state.id] > 0
        ]
        if not requests or self._drafts is None:
            return {}
        made = zip(requests, self._drafts.propose(requests), strict=True)
        return {request.seq: draft for request, draft in made if draft.tokens}

    def _take(self, state: Active, answer: Answer, draft: Draft | None) -> Chunk:
        drafted = draft.tokens if draft else []
        tokens, stopped = state.stop.cut(answer.tokens)
        accepted = next(
            (i for i, (a, b) in enumerate(zip(drafted, tokens, strict=False)) if a != b),
            min(len(drafted), len(tokens)),
        )
        state.tokens += tokens
        verified = state.count(len(tokens), len(drafted), accepted)
        state.stamp(perf_counter_ns())
        # "length" only says that this one step is over; "stop" ends the request.
        reason = self._ended(state, stopped, "stop" if answer.reason == "stop" else None)
        if not tokens and reason is None:
            reason = "stop"  # the engine has nothing more to say
        if reason:
            self._running.pop(state.id)
            self._forsake(state)
        elif verified and state.speculates and self._drafts:
            self._drafts.accept(state.id, tokens, accepted)
            if state.request.draft_len is None:
                state.draft_len = self._policy.following(state.draft_len, len(drafted), accepted)
        return Chunk(state.id, tokens, accepted, len(drafted), reason)

    def _forsake(self, state: Active) -> None:
        if state.speculates and self._drafts:
            self._drafts.end(state.id)
