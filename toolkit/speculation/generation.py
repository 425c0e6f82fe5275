"""What generates for many requests at once, whatever runs the models behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from toolkit.errors import RunError
from toolkit.speculation.interfaces import SpeculationStats
from toolkit.speculation.request import Chunk, FinishReason, Output, Request


class GenerationLoop(ABC):
    """Requests are submitted, advance step by step, and are counted until forgotten."""

    def __init__(self) -> None:
        self._stats: dict[int, SpeculationStats] = {}
        self.reused_tokens = 0  # of prompts that the KV cache knew already
        # Told of a drafter that fails and of how many requests go on without it. None: the failure
        # is raised, for a measurement must not pass over it.
        self.draft_failed: Callable[[Exception, int], None] | None = None

    @property
    @abstractmethod
    def active(self) -> int:
        """Requests that are not finished."""

    @abstractmethod
    def submit(self, request: Request) -> int:
        """Queue a request; returns the id that its chunks carry."""

    @abstractmethod
    def cancel(self, request: int) -> Chunk | None:
        """End a request and free what it holds; None when it was already over."""

    @abstractmethod
    def step(self) -> list[Chunk]:
        """The next chunks. An exception ends every request and leaves the loop usable."""

    @abstractmethod
    def close(self) -> None:
        """Cancel everything."""

    def stats(self, request: int) -> SpeculationStats:
        """The counts of a request, finished or not, until `forget`."""
        return self._stats[request]

    def forget(self, request: int) -> None:
        """Drop the counts of a finished request."""
        self._stats.pop(request, None)

    def generate(self, requests: Sequence[Request]) -> list[Output]:
        """Run these requests to their end; nothing else may be active."""
        if self.active:
            raise RuntimeError("generate() would swallow the chunks of requests that are active")
        tokens: dict[int, list[int]] = {}
        reasons: dict[int, FinishReason] = {}
        try:
            for request in requests:
                tokens[self.submit(request)] = []
            while self.active:
                for chunk in self.step():
                    if chunk.finish_reason == "failed":
                        raise RunError(chunk.error)
                    tokens[chunk.request] += chunk.tokens
                    if chunk.finish_reason:
                        reasons[chunk.request] = chunk.finish_reason
            return [Output(tokens[id], reasons[id], self._stats[id]) for id in tokens]
        finally:
            self.close()
            for id in tokens:
                self.forget(id)
