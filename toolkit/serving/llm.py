"""What stands behind `tensorrt_llm` and `tensorrt_llm_draft`: calls batched in flight on one model.

Every call brings the whole text. Reading it again is avoided by `SequencePool`; a call with draft
tokens is one verify step, a call without them generates `request_output_len` tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import numpy as np

from toolkit.errors import CapacityError, InputError, RunError, SpectoolError
from toolkit.serving.calls import ActiveCall, Call, Sink
from toolkit.serving.failures import CancelledError, queue_full, stopping, unexpected
from toolkit.serving.matchers import GuidedText, MatcherPool
from toolkit.serving.sequences import SequencePool
from toolkit.speculation.grammar import GrammarError
from toolkit.speculation.interfaces import LanguageModel, StepOutput
from toolkit.speculation.sampling import Role

DEFAULT_QUEUE_SIZE = 256
_CANCEL_CHECK_S = 0.05
# A request that drafts elsewhere comes back within a few milliseconds: worth waiting for, if the
# step itself costs much more.
_PATIENCE_S, _PATIENCE_SHARE = 0.004, 0.25


@dataclass(slots=True, eq=False)
class _Waiting:
    call: Call
    sink: Sink
    checked: float = 0.0


class CallEngine:
    """Advances all calls of one model together; see `worker.Engine`."""

    def __init__(
        self,
        model: LanguageModel,
        role: Role,
        *,
        vocab_size: int | None = None,  # never produce tokens from here on
        max_queue_size: int = DEFAULT_QUEUE_SIZE,
        max_prefill_tokens: int = 512,  # of one step: a long prompt must not stall the others
        on_change: Callable[[int, int], None] = lambda active, reused: None,
    ) -> None:
        self._model, self._role = model, role
        self._vocab_size = min(vocab_size or model.vocab_size, model.vocab_size)
        # Calls that come together all wait at first, also where a sequence is free for each.
        self._max_queue_size, self._places = max_queue_size, model.max_batch_size + max_queue_size
        self._max_prefill_tokens = max_prefill_tokens
        self.pool = SequencePool(model)
        self._matchers = MatcherPool()
        self._waiting: deque[_Waiting] = deque()
        self._running: list[ActiveCall] = []
        self._step_s = 0.0
        self._on_change = on_change  # (sequences held, tokens newly reused)
        self._reported = (0, 0)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def patience(self) -> float:
        expected = self.pool.active - len(self._running) - len(self._waiting)
        return min(_PATIENCE_S, _PATIENCE_SHARE * self._step_s) if expected > 0 else 0.0

    def submit(self, call: Call, sink: Sink) -> None:
        """Queue a call, or tell its sink what is wrong with it."""
        if problems := self._problems(call):
            sink.fail(InputError("; ".join(problems)))
        elif len(self._waiting) + len(self._running) >= self._places:
            sink.fail(queue_full(self._max_queue_size))
        else:
            self._waiting.append(_Waiting(call, sink))

    def stop(self, request_id: str) -> None:
        """End the calls of a request and let its sequences go."""
        for waiting in [w for w in self._waiting if w.call.request_id == request_id]:
            self._waiting.remove(waiting)
            waiting.sink.fail(CancelledError())
        for active in [a for a in self._running if a.call.request_id == request_id]:
            self._finish(active)
            active.sink.fail(CancelledError())
        self.pool.release(request_id)
        self._matchers.release(request_id)
        self._report()

    def close(self) -> None:
        self._fail_all(stopping())
        self.pool.close()
        self._report()  # what requests still held is gone with the model

    def step(self) -> None:
        self._drop_cancelled()
        self._admit()
        self._report()  # before the answers: whoever has one finds its sequence counted
        if self._running:
            self._advance()
        self._report()

    def _advance(self) -> None:
        started = monotonic()
        try:
            outputs = self._forward()
        except Exception as error:  # noqa: BLE001 - whatever it was, no request may hang on it
            self._fail_all(unexpected(error))
            return
        self._step_s = monotonic() - started
        for active, output in zip(list(self._running), outputs, strict=True):
            self._take(active, output)

    def _report(self) -> None:
        now = (self.pool.active, self.pool.reused_tokens)
        if now != self._reported:
            self._on_change(now[0], now[1] - self._reported[1])
            self._reported = now

    def _forward(self) -> list[StepOutput]:
        """One pass; when KV memory runs out, what is only remembered goes first."""
        while True:
            try:
                return self._model.forward([a.step(self._budget()) for a in self._running])
            except CapacityError as error:
                if self.pool.forget_one():
                    continue
                newest = self._running.pop()
                self.pool.discard(newest.cached)
                newest.sink.fail(error)
                if not self._running:
                    return []

    def _take(self, active: ActiveCall, output: StepOutput) -> None:
        try:
            emission = active.take(output.logits[:, : self._vocab_size])
        except RunError as error:
            self._running.remove(active)
            self._matchers.release(active.call.request_id)
            self.pool.discard(active.cached)  # its refused tokens are in there
            active.sink.fail(error)
            return
        if emission is None:
            return
        if emission.drafted:
            # What was refused is overwritten by the next call.
            kept = len(active.call.input_ids) + emission.accepted
            active.cached.tokens = active.cached.tokens[:kept]
            self._model.truncate(active.cached.seq, kept)
        self._finish(active)
        active.sink.send(emission)

    def _finish(self, active: ActiveCall) -> None:
        self._running.remove(active)
        self.pool.give_back(active.cached)

    def _admit(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            cached = self.pool.acquire(first.call.input_ids, first.call.request_id)
            if cached is None:
                return
            self._waiting.popleft()
            try:
                guided = self._guided(first.call)
            except GrammarError as error:
                self.pool.give_back(cached)
                first.sink.fail(error)
                continue
            longest = self._model.max_seq_len
            self._running.append(
                ActiveCall(first.call, first.sink, cached, self._role, longest, guided)
            )

    def _guided(self, call: Call) -> GuidedText | None:
        if call.grammar is None:
            return None
        said = call.input_ids[call.guide_begins :]
        return self._matchers.acquire(call.grammar, said, call.request_id)

    def _budget(self) -> int:
        """Prompt tokens that each call may read in this step."""
        return max(self._max_prefill_tokens // max(len(self._running), 1), 1)

    def _drop_cancelled(self) -> None:
        for active in [a for a in self._running if _gone(a)]:
            self._finish(active)
            self._drop(active.call, active.sink)
        for waiting in [w for w in self._waiting if _gone(w)]:
            self._waiting.remove(waiting)
            self._drop(waiting.call, waiting.sink)

    def _drop(self, call: Call, sink: Sink) -> None:
        self.pool.release(call.request_id)
        self._matchers.release(call.request_id)
        sink.fail(CancelledError())

    def _fail_all(self, error: SpectoolError) -> None:
        for active in list(self._running):
            self._running.remove(active)
            self.pool.discard(active.cached)  # nobody knows how far it got
            active.sink.fail(error)
        while self._waiting:
            self._waiting.popleft().sink.fail(error)

    def _problems(self, call: Call) -> list[str]:
        longest, vocab_size = self._model.max_seq_len, self._model.vocab_size
        tokens = np.asarray([*call.input_ids, *call.draft_input_ids], dtype=np.int64)
        problems = []
        if not call.input_ids:
            problems.append("input_ids: no tokens")
        if len(tokens) >= longest + (1 if call.draft_input_ids else 0):
            problems.append(
                f"input_ids: {len(tokens)} tokens with the draft; max_seq_len is {longest}"
            )
        if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocab_size):
            problems.append(f"input_ids: tokens outside the vocabulary of {vocab_size}")
        if call.request_output_len < 1:
            problems.append(f"request_output_len: {call.request_output_len}, expected 1 or more")
        if call.draft_logits is not None and len(call.draft_logits) != len(call.draft_input_ids):
            problems.append(
                f"draft_logits: {len(call.draft_logits)} rows for "
                f"{len(call.draft_input_ids)} draft tokens"
            )
        return problems


def _gone(entry: ActiveCall | _Waiting) -> bool:
    """Whether its client has gone; asked only now and then, for asking crosses processes."""
    now = monotonic()
    if now - entry.checked < _CANCEL_CHECK_S:
        return False
    entry.checked = now
    return entry.sink.cancelled()
