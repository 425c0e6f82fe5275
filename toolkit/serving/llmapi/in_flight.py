"""Requests at the LLM API: a thread reads each, one more ends those whose clients are gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from toolkit.errors import CapacityError, InputError, RunError, SpectoolError
from toolkit.serving.failures import CancelledError, no_room, queue_full, stopping
from toolkit.serving.llmapi.request import LlmRequest
from toolkit.serving.llmapi.responses import (
    Arrays,
    draft_counts,
    request_times,
    response_arrays,
)

# Errors of the LLM API about a request: their first line is what a person can use.
_THEIRS = (OSError, RuntimeError, ValueError, TypeError)


class Sink(Protocol):
    """Where the responses of one request go; called from several threads, one at a time."""

    def send(self, arrays: Arrays, *, final: bool) -> None: ...

    def fail(self, error: SpectoolError) -> None: ...

    def cancelled(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Finished:
    """What one request added to the counts; its times as the engine or this process saw them."""

    tokens: int
    drafted: int
    accepted: int
    reason: str
    times_s: tuple[float, float]  # to the first token, to the last one

    @property
    def drafts(self) -> int:
        """Verify steps with a draft: each emits what it accepts and one more, prefill emits one."""
        return max(self.tokens - 1 - self.accepted, 1) if self.drafted else 0


@dataclass(eq=False, slots=True)
class _Flight:
    request: LlmRequest
    sink: Sink
    output: Any  # tensorrt_llm.llmapi.RequestOutput
    request_id: str
    ended: bool = False  # its client has the last response, or is gone
    arrived: float = field(default_factory=perf_counter)


class InFlight:
    """`llm` and `params` are tensorrt_llm's LLM, loaded, and SamplingParams."""

    def __init__(
        self,
        llm: Any,
        params: Any,
        *,
        most: int,  # running and waiting together
        max_queue_size: int,
        check_period_s: float,
        deltas: bool = False,
        on_change: Callable[[int], None] = lambda active: None,
        on_finish: Callable[[Finished], None] = lambda finished: None,
    ) -> None:
        self._llm, self._params, self._deltas = llm, params, deltas
        self._most, self._max_queue_size = most, max_queue_size
        self._on_change, self._on_finish = on_change, on_finish
        self._flights: set[_Flight] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(
            target=self._watch, args=(check_period_s,), name="cancellations", daemon=True
        )
        self._watcher.start()

    def submit(self, request: LlmRequest, sink: Sink, request_id: str = "") -> None:
        """Hand the request over, or tell its sink what is wrong with it."""
        with self._lock:
            full = len(self._flights) >= self._most
        if full:
            sink.fail(queue_full(self._max_queue_size))
            return
        try:
            output = self._llm.generate_async(
                request.text,
                sampling_params=self._params(**request.sampling),
                streaming=request.streaming,
            )
        except _THEIRS as error:
            sink.fail(_said(error))
            return
        flight = _Flight(request, sink, output, request_id)
        with self._lock:
            self._flights.add(flight)
            self._on_change(len(self._flights))
        threading.Thread(target=self._read, args=(flight,), name="request", daemon=True).start()

    def stop(self, request_id: str) -> None:
        """End every request of this id; InputError without one."""
        if not request_id:
            raise InputError("stop: needs the request id of what is to be stopped")
        with self._lock:
            named = [flight for flight in self._flights if flight.request_id == request_id]
        for flight in named:
            self._cancel(flight)

    def close(self) -> None:
        """Nobody waits any longer."""
        self._closing.set()
        self._watcher.join()
        with self._lock:
            left = list(self._flights)
        for flight in left:
            self._end(flight, lambda sink: sink.fail(stopping()))
            _abort(flight)

    def _read(self, flight: _Flight) -> None:
        try:
            self._responses(flight)
        except Exception as error:  # noqa: BLE001 - the client must hear of it, whatever it was
            said = _said(error)
            self._end(flight, lambda sink: sink.fail(said))
        finally:
            with self._lock:
                self._flights.discard(flight)
                self._on_change(len(self._flights))

    def _responses(self, flight: _Flight) -> None:
        request, start, output = flight.request, 0, flight.output
        for output in flight.output:
            if not request.streaming or output.finished or flight.ended:
                continue
            arrays = response_arrays(request, output.outputs, start=start)
            start = len(output.outputs[0].text) if self._deltas else 0
            flight.sink.send(arrays, final=False)
        first = output.outputs[0]
        elapsed = perf_counter() - flight.arrived
        times = request_times(first) or (elapsed, elapsed)
        counts = draft_counts(first)
        self._on_finish(Finished(len(first.token_ids), *counts, str(first.finish_reason), times))
        if first.finish_reason == "cancelled":
            self._end(flight, lambda sink: sink.fail(CancelledError()))
            return
        arrays = response_arrays(request, output.outputs, start=start)
        self._end(flight, lambda sink: sink.send(arrays, final=True))

    def _watch(self, period_s: float) -> None:
        while not self._closing.wait(period_s):
            with self._lock:
                flights = [flight for flight in self._flights if not flight.ended]
            for flight in flights:
                if flight.sink.cancelled():
                    self._cancel(flight)

    def _cancel(self, flight: _Flight) -> None:
        """Answered now: whether and when an aborted request says its last is the LLM's affair."""
        self._end(flight, lambda sink: sink.fail(CancelledError()))
        _abort(flight)

    def _end(self, flight: _Flight, last: Callable[[Sink], None]) -> None:
        """The last response, once."""
        with self._lock:
            first, flight.ended = not flight.ended, True
        if first:
            last(flight.sink)


def _abort(flight: _Flight) -> None:
    with suppress(RuntimeError):  # it has just finished, or the executor is shut down
        flight.output.abort()


def _said(error: Exception) -> SpectoolError:
    """The LLM API refuses a request that it cannot run with a ValueError."""
    if isinstance(error, SpectoolError):
        return error
    lines = str(error).strip().splitlines()
    said = f"{lines[0][:500] if lines else 'no reason given'} ({type(error).__name__})"
    if no_room(said):
        return CapacityError(said)
    return InputError(said) if isinstance(error, ValueError | TypeError) else RunError(said)
