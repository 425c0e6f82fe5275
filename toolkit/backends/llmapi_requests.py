"""Requests in flight at a TensorRT-LLM that streams: one thread reads each, `wait` hands out all.

Both ways to the LLM API, in this process and over HTTP, are such executors: what differs is how a
stream is opened, so `tensorrt.loops.EngineLoop` runs on them as it does on an engine.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolkit.backends.tensorrt.executor import Answer
from toolkit.errors import RunError, SpectoolError
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import FinishReason

REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "cancelled": "cancelled"}
# Errors of the other side, not of ours: their first line is what a person can use.
_THEIRS = (OSError, RuntimeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class LlmLimits:
    """What the deployment was configured for; the loop refuses what cannot fit."""

    path_len: int  # draft tokens of one verify step; 0: it decodes plainly
    vocab_size: int
    max_seq_len: int
    max_batch_size: int


@dataclass(frozen=True, slots=True)
class Piece:
    """New tokens of one streamed response."""

    tokens: list[int]
    finish: str | None = None  # in upstream's word
    iterations: int | None = None  # spent on the request so far, where it is told
    counts: tuple[int, int] | None = None  # (accepted, drafted) of the whole request


class TokenStream(ABC):
    """The responses to one request; `close` may come from another thread and ends them early."""

    @abstractmethod
    def __iter__(self) -> Iterator[Piece]: ...

    @abstractmethod
    def close(self) -> None: ...


class StreamingExecutor(ABC):
    """Submit, wait for whatever comes next, cancel. One thread of the caller at a time."""

    def __init__(self, where: str, limits: LlmLimits, *, timeout_s: float) -> None:
        self.where, self.limits, self.timeout_s = where, limits, timeout_s
        self._inbox: queue.Queue[Answer | tuple[int, Exception]] = queue.Queue()
        self._arrived: deque[Answer | tuple[int, Exception]] = deque()
        self._streams: dict[int, TokenStream] = {}
        self._next = 0

    @property
    def max_seq_len(self) -> int:
        return self.limits.max_seq_len

    @property
    def vocab_size(self) -> int:
        return self.limits.vocab_size

    @property
    def max_batch_size(self) -> int:
        return self.limits.max_batch_size

    @abstractmethod
    def open_stream(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams,
        stop_tokens: frozenset[int],
    ) -> TokenStream:
        """Send the request, or get ready to send it when the stream is first read."""

    @abstractmethod
    def shutdown(self) -> None:
        """Free what is behind the requests."""

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams,
        *,
        stop_tokens: frozenset[int] = frozenset(),
        streaming: bool = True,
    ) -> int:
        """Start one request; its id is on every answer to it. Responses are always streamed."""
        request = self._next
        self._next += 1
        stream = self.open_stream(prompt, max_tokens, sampling, stop_tokens)
        self._streams[request] = stream
        name = f"stream-{request}"
        threading.Thread(target=self._read, args=(request, stream), name=name, daemon=True).start()
        return request

    def wait(self) -> list[Answer]:
        """The next answers, at least one and at most one of each request: a step as loops count
        them. RunError when the other side fails or is silent.
        """
        answers: dict[int, Answer] = {}
        while not answers:  # else all of them were late answers to cancelled requests
            self._collect()
            answers = self._next_step()
        for answer in answers.values():
            if answer.reason is not None:
                self._streams.pop(answer.request, None)
        return list(answers.values())

    def cancel(self, request: int) -> None:
        stream = self._streams.pop(request, None)
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """Cancel everything and free what is behind it."""
        for request in list(self._streams):
            self.cancel(request)
        self.shutdown()

    def _read(self, request: int, stream: TokenStream) -> None:
        iterations = 0
        try:
            for piece in stream:
                iterations = max(iterations + bool(piece.tokens), piece.iterations or 0)
                self._inbox.put(self._answer(request, piece, iterations))
                if piece.finish:
                    return
            raise RunError(f"{self.where}: the stream of a request ended without a finish reason")
        except Exception as error:  # noqa: BLE001 - `wait` raises it in the caller's thread
            self._inbox.put((request, error))

    def _answer(self, request: int, piece: Piece, iterations: int) -> Answer:
        most = self.limits.path_len + 1
        if len(piece.tokens) > most:
            raise RunError(
                f"{self.where}: one response carries {len(piece.tokens)} tokens, a verify step "
                f"emits at most {most} (draft length {self.limits.path_len} + 1); set "
                "stream_interval: 1, or name the draft length that is deployed"
            )
        if piece.finish and piece.finish not in REASONS:
            raise RunError(
                f"{self.where}: a request ended with {piece.finish!r}, expected one of "
                f"{', '.join(REASONS)}"
            )
        return Answer(
            request=request,
            tokens=piece.tokens,
            iterations=iterations,
            reason=REASONS[piece.finish] if piece.finish else None,
            counts=piece.counts if piece.finish else None,
        )

    def _next_step(self) -> dict[int, Answer]:
        """By request, up to the first that comes a second time."""
        answers: dict[int, Answer] = {}
        while self._arrived:
            answer = self._checked(self._arrived[0])
            if answer is not None and answer.request in answers:
                break
            self._arrived.popleft()
            if answer is not None:
                answers[answer.request] = answer
        return answers

    def _collect(self) -> None:
        """Everything that has come in, after waiting for something to come."""
        try:
            if not self._arrived:
                self._arrived.append(self._inbox.get(timeout=self.timeout_s))
            while True:
                self._arrived.append(self._inbox.get_nowait())
        except queue.Empty:
            if not self._arrived:
                raise RunError(f"{self.where}: no answer in {self.timeout_s:g} s") from None

    def _checked(self, item: Answer | tuple[int, Exception]) -> Answer | None:
        """The answer, or None when nobody waits for it any more; errors come out here."""
        if isinstance(item, Answer):
            return item if item.request in self._streams else None
        request, error = item
        if self._streams.pop(request, None) is None:
            return None  # cancelled: its connection broke because we broke it
        if isinstance(error, SpectoolError) or not isinstance(error, _THEIRS):
            raise error
        raise RunError(f"{self.where}: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """What an error says, in one line that is never empty."""
    lines = str(error).strip().splitlines()
    return lines[0][:500] if lines else type(error).__name__
