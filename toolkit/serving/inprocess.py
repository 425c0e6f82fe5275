"""The whole speculative loop in one served model: requests batched in flight."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from toolkit.errors import SpectoolError
from toolkit.serving.failures import queue_full, stopping, unexpected
from toolkit.serving.llm import DEFAULT_QUEUE_SIZE
from toolkit.serving.replies import ReplyBuilder
from toolkit.speculation.generation import GenerationLoop
from toolkit.speculation.request import Request

_CANCEL_CHECK_S = 0.05


class LoopEngine:
    """Drives one loop for all requests; see `worker.Engine`."""

    def __init__(
        self,
        loop: GenerationLoop,
        *,
        max_batch_size: int,
        max_queue_size: int = DEFAULT_QUEUE_SIZE,
        on_change: Callable[[int, int], None] = lambda active, reused: None,
    ) -> None:
        self._loop = loop
        self._max_queue_size = max_queue_size
        self._places = max_batch_size + max_queue_size
        self._on_change = on_change  # (requests, prompt tokens newly reused)
        self._reused = 0
        self._replies: dict[int, ReplyBuilder] = {}
        self._checked = monotonic()

    @property
    def busy(self) -> bool:
        return self._loop.active > 0

    def patience(self) -> float:
        return 0.0  # a step takes in newcomers by itself

    def submit(self, request: Request, reply: ReplyBuilder) -> None:
        """Queue a request, or tell its sink what is wrong with it."""
        if self._loop.active >= self._places:
            reply.sink.fail(queue_full(self._max_queue_size))
            return
        try:
            self._replies[self._loop.submit(request)] = reply
        except SpectoolError as error:
            reply.sink.fail(error)
        self._report()

    def step(self) -> None:
        self._drop_cancelled()
        try:
            chunks = self._loop.step()
        except Exception as error:  # noqa: BLE001 - whatever it was, no request may hang on it
            self._fail_all(unexpected(error))
            return
        for chunk in chunks:
            self._replies[chunk.request].take(chunk)
            if chunk.finish_reason:
                self._forget(chunk.request)
        self._report()

    def close(self) -> None:
        self._loop.close()
        self._fail_all(stopping())

    def _drop_cancelled(self) -> None:
        if monotonic() - self._checked < _CANCEL_CHECK_S:
            return
        self._checked = monotonic()
        for id, reply in list(self._replies.items()):
            if reply.sink.cancelled() and (chunk := self._loop.cancel(id)):
                reply.take(chunk)
                self._forget(id)

    def _fail_all(self, error: SpectoolError) -> None:
        for id, reply in list(self._replies.items()):
            reply.sink.fail(error)
            self._forget(id)
        self._report()

    def _forget(self, id: int) -> None:
        del self._replies[id]
        self._loop.forget(id)

    def _report(self) -> None:
        reused, self._reused = self._loop.reused_tokens - self._reused, self._loop.reused_tokens
        self._on_change(self._loop.active, reused)
