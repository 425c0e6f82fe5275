"""In-flight speculative decoding: requests join and leave between steps, each at its own pace.

A step is: every active sequence gets a proposal, one ragged forward pass of the target verifies
them all (and reads a piece of the newcomers' prompts), and what was refused is rolled back. Between
steps a sequence's last token is not in the target's KV cache yet: a verify step feeds
[last token, draft tokens ...] and gets draft_len + 1 rows. Plain decoding is draft_len 0.

Not thread-safe: one thread submits, steps and cancels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from time import perf_counter_ns
from typing import TypeVar

from toolkit.errors import CapacityError, InputError
from toolkit.speculation.draft_length import DraftLengthPolicy
from toolkit.speculation.generation import GenerationLoop
from toolkit.speculation.grammar import GrammarError
from toolkit.speculation.interfaces import (
    Drafter,
    DraftRequest,
    LanguageModel,
    Proposal,
    StepOutput,
)
from toolkit.speculation.request import (
    GREEDY,
    Active,
    Chunk,
    FinishReason,
    Output,
    Request,
    check,
    rooms,
)
from toolkit.speculation.sampling import most_likely
from toolkit.speculation.steps import choose, prefill_step, verify_step
from toolkit.speculation.stop import Decode, StopCondition
from toolkit.speculation.token_tree import check_parents

__all__ = ["Chunk", "Output", "Request", "SpeculativeLoop"]

_T = TypeVar("_T")


class SpeculativeLoop(GenerationLoop):
    """Drives one target and, unless decoding plainly, one drafter."""

    def __init__(
        self,
        target: LanguageModel,
        drafter: Drafter | None,
        policy: DraftLengthPolicy,
        *,
        decode: Decode | None = None,  # needed for stop strings
        max_prefill_tokens: int = 512,  # of one step: a long prompt must not stall the others
        posterior_threshold: float | None = None,  # accept what is typical: lossy
    ) -> None:
        super().__init__()
        self._target = target
        self._drafter = drafter
        self._policy = policy
        self._decode = decode
        self._max_prefill_tokens = max_prefill_tokens
        self._epsilon = posterior_threshold
        self._waiting: deque[Active] = deque()
        self._running: list[Active] = []
        self._full = False  # KV blocks ran out: admit nobody until a request ends
        self._next_id = 0

    @property
    def active(self) -> int:
        """Requests that are not finished, those that wait for a slot included."""
        return len(self._waiting) + len(self._running)

    def submit(self, request: Request) -> int:
        """Queue a request; it joins the first step that has a slot for it."""
        check(request, self._target.vocab_size, self._target.max_seq_len)
        draft_len = self._policy.first() if request.draft_len is None else request.draft_len
        state = Active(
            id=self._next_id,
            request=request,
            stop=StopCondition(request.end_tokens, request.stop_strings, self._decode),
            limit=min(len(request.prompt) + request.max_tokens, self._target.max_seq_len),
            draft_len=draft_len,
            speculates=self._drafter is not None and draft_len > 0,
            tokens=list(request.prompt),
            matcher=request.grammar.matcher() if request.grammar else None,
        )
        if state.limit > self._target.kv_capacity:
            raise InputError(  # no other time will do
                f"prompt and max_tokens: {state.limit} tokens, more than the KV memory of this "
                f"deployment ever holds ({self._target.kv_capacity}); ask for fewer"
            )
        self._next_id += 1
        self._stats[state.id] = state.stats
        self._waiting.append(state)
        return state.id

    def cancel(self, request: int) -> Chunk | None:
        """End a request and free its KV cache at once; None when it was already over."""
        for state in (*self._running, *self._waiting):
            if state.id == request:
                self._end(state)
                return Chunk(request, [], 0, 0, "cancelled")
        return None

    def close(self) -> None:
        """Cancel everything."""
        with ExitStack() as stack:  # all of them, even when a drafter cannot end one
            for state in (*self._running, *self._waiting):
                stack.callback(self._end, state)

    def step(self) -> list[Chunk]:
        """Advance every request. An exception ends them all and leaves the loop usable."""
        try:
            self._admit()
            return self._advance()
        except BaseException:
            self.close()
            raise

    def _advance(self) -> list[Chunk]:
        while True:
            try:
                verifying, reading, outputs = self._forward()
                break
            except CapacityError:
                if len(self._running) == 1:
                    raise
                self._preempt()
        emitted = [
            (state, self._emit(state, proposal, output))
            for (state, proposal), output in zip(verifying, outputs, strict=False)
        ]
        for (state, count), output in zip(reading, outputs[len(verifying) :], strict=True):
            state.read += count
            self._observe(state, output)
            if not state.unread and state.slot is not None:
                self._target.share(state.slot, state.tokens[: state.read])
            if not state.unread and not state.started:
                # The prompt's last row is a verify step without a draft.
                emitted.append((state, self._emit(state, Proposal([]), output)))
        now = perf_counter_ns()
        for state, _ in emitted:
            state.stamp(now)
        return [chunk for _, chunk in emitted]

    def _forward(
        self,
    ) -> tuple[list[tuple[Active, Proposal]], list[tuple[Active, int]], list[StepOutput]]:
        """Draft, then one pass of the target over all verify steps and pieces of prompts."""
        verifying = self._propose([state for state in self._running if not state.unread])
        reading = self._pieces_to_read()
        steps = [
            *(verify_step(state, proposal, self._hidden(state)) for state, proposal in verifying),
            *(prefill_step(state, count, self._hidden(state)) for state, count in reading),
        ]
        return verifying, reading, self._target.forward(steps) if steps else []

    def _hidden(self, state: Active) -> bool:
        """Whether this request's drafter wants to see what the target thinks."""
        return state.speculates and self._drafter is not None and self._drafter.reads_hidden

    def _admit(self) -> None:
        """Give slots to those that wait, first come first served."""
        while self._waiting and not (self._full and self._running):
            state = self._waiting[0]
            try:
                state.slot = self._target.open()
                text = state.tokens[: state.unread]
                if not self._hidden(state):  # a drafter that looks on must see every token
                    # The last token is always read: its logits are the first that are wanted.
                    state.read = self._target.adopt(state.slot, text[:-1])
                    self.reused_tokens += state.read
                self._begin(state, text)
            except CapacityError:
                self._release(state)
                state.read = 0
                if not self._running:
                    raise  # nobody will ever make room
                return
            self._running.append(self._waiting.popleft())

    def _begin(self, state: Active, text: list[int]) -> None:
        if (drafter := self._drafter) and state.speculates:
            self._guarded([state], lambda: drafter.begin(state.id, text), None)

    def _preempt(self) -> None:
        """Out of KV blocks: the youngest request waits until another one ends, then reads again.

        Its text stays as it is, and goes on as it would have: uniforms belong to positions.
        """
        state = self._running.pop()
        self._release(state)
        state.read = 0
        self._waiting.appendleft(state)
        self._full = True

    def _pieces_to_read(self) -> list[tuple[Active, int]]:
        """Which prompts to read on in this step, and how many tokens of each."""
        pieces, budget = [], self._max_prefill_tokens
        for state in self._running:
            if count := min(state.unread, budget):
                pieces.append((state, count))
                budget -= count
        return pieces

    def _propose(self, verifying: Sequence[Active]) -> list[tuple[Active, Proposal]]:
        """Each with its proposal, empty where nothing may be drafted."""
        room = rooms(self._policy, verifying, len(self._running))
        confidence = self._policy.confidence
        requests = [
            DraftRequest(
                state.id,
                state.tokens,
                room[state.id],
                # What is accepted for being typical is the likeliest, not drawn by chance.
                state.request.sampling if self._epsilon is None else GREEDY,
                confidence,
                state.matcher,
            )
            for state in verifying
            if room[state.id] > 0
        ]
        if not requests or self._drafter is None:
            return [(state, Proposal([])) for state in verifying]
        drafter, drafting = self._drafter, {request.seq for request in requests}
        none: dict[int, Proposal] = {}
        made = self._guarded(
            [state for state in verifying if state.id in drafting],
            lambda: {
                request.seq: self._checked(request, proposal)
                for request, proposal in zip(requests, drafter.propose(requests), strict=True)
            },
            none,
        )
        return [(state, made.get(state.id, Proposal([]))) for state in verifying]

    def _guarded(self, states: Sequence[Active], work: Callable[[], _T], otherwise: _T) -> _T:
        """Have the drafter work for these requests; where it fails, they go on without it."""
        try:
            return work()
        except CapacityError:
            raise  # not its fault: somebody has to make room
        except Exception as error:
            if self.draft_failed is None:
                raise
            for state in states:
                state.speculates = False
                with suppress(Exception):  # it is out of order: whatever it says now
                    if self._drafter:
                        self._drafter.end(state.id)
            self.draft_failed(error, len(states))
            return otherwise

    def _checked(self, request: DraftRequest, proposal: Proposal) -> Proposal:
        """A drafter that breaks its contract must not reach the target's cache."""
        drafter, vocab_size = type(self._drafter).__name__, self._target.vocab_size
        if proposal.parents is not None:
            check_parents(proposal.parents, len(proposal.tokens))
        if proposal.depth > request.draft_len:
            raise RuntimeError(
                f"{drafter} drafted {proposal.depth} tokens, allowed {request.draft_len}"
            )
        if any(not 0 <= token < vocab_size for token in proposal.tokens):
            raise RuntimeError(f"{drafter} drafted outside the vocabulary of {vocab_size}")
        if request.matcher:
            proposal = proposal.within(request.matcher)
        # A tree has more nodes than one path; the target's context must hold them all.
        return proposal.first(self._target.max_seq_len - len(request.tokens))

    def _emit(self, state: Active, proposal: Proposal, output: StepOutput) -> Chunk:
        """Verify, stop where the request says so, and roll everything back to what stands."""
        drafter = self._drafter
        if state.speculates and drafter and drafter.reads_choices and proposal.tokens:
            chosen = most_likely(output.logits)
            self._guarded([state], lambda: drafter.chosen(state.id, chosen), None)
        tokens, path = choose(state, proposal, output, self._epsilon)
        tokens, stopped = state.stop.cut(tokens)
        accepted, drafted = min(len(path), len(tokens)), proposal.depth
        try:
            if state.matcher:
                state.matcher.advance(tokens)
        except GrammarError as error:
            self._end(state)
            return Chunk(state.id, [], 0, drafted, "failed", str(error))
        base = state.read
        state.tokens += tokens
        state.read = len(state.tokens) - 1
        verified = state.count(len(tokens), drafted, accepted)
        reason: FinishReason | None = "stop" if stopped else None
        if not stopped and len(state.tokens) >= state.limit:
            reason = "length"
        if reason:
            if proposal.parents is not None:
                state.read = base  # the rows behind it stand in the tree's order
            self._end(state)
        elif verified:
            self._keep(state, base, proposal, path, output)
            self._tell(state, tokens, drafted, accepted)
        return Chunk(state.id, tokens, accepted, drafted, reason)

    def _keep(
        self, state: Active, base: int, proposal: Proposal, path: list[int], output: StepOutput
    ) -> None:
        """Of the last token and the draft, fed from position `base`, only what stands."""
        assert state.slot is not None
        if proposal.parents is None:
            self._target.truncate(state.slot, state.read)
        else:
            self._target.keep(state.slot, base, [0, *(node + 1 for node in path)])
        self._observe(state, output, [0, *(node + 1 for node in path)])

    def _observe(self, state: Active, output: StepOutput, rows: list[int] | None = None) -> None:
        if output.hidden is not None and (drafter := self._drafter) and state.speculates:
            hidden = output.hidden if rows is None else output.hidden[rows]
            self._guarded([state], lambda: drafter.observe(state.id, hidden), None)

    def _tell(self, state: Active, tokens: list[int], drafted: int, accepted: int) -> None:
        if (drafter := self._drafter) and state.speculates:
            self._guarded([state], lambda: drafter.accept(state.id, tokens, accepted), None)
        if state.request.draft_len is None:
            state.draft_len = self._policy.following(state.draft_len, drafted, accepted)

    def _end(self, state: Active) -> None:
        self._full = False
        (self._running if state in self._running else self._waiting).remove(state)
        self._release(state)

    def _release(self, state: Active) -> None:
        """Give back what the request holds in drafter and target."""
        if state.slot is None:
            return
        slot, state.slot = state.slot, None
        self._target.share(slot, state.tokens[: state.read])  # whoever continues this text
        try:
            if (drafter := self._drafter) and state.speculates:
                self._guarded([state], lambda: drafter.end(state.id), None)
        finally:
            self._target.close(slot)
