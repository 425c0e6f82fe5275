"""From chunks of tokens to what a client sees: text, in deltas or whole, and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from toolkit.errors import RunError, SpectoolError
from toolkit.serving.counters import RequestFigures, SpeculationCounters
from toolkit.serving.failures import CancelledError
from toolkit.serving.text_request import TextRequest
from toolkit.speculation.request import Chunk
from toolkit.speculation.stop import HeldText


class TextStream(Protocol):
    """Tokens in, text out; a character comes when all of its bytes have come."""

    def push(self, ids: list[int]) -> str: ...

    def finish(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """One response; the counts are of the whole request so far."""

    text: str
    draft_tokens: int
    accepted_tokens: int
    with_counts: bool
    final: bool
    output_tokens: int | None = None  # of the whole request so far, if it asked for them

    @property
    def acceptance_rate(self) -> float:
        """0 when nothing was drafted, as TensorRT-LLM reports it."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0


class ReplySink(Protocol):
    """Where the replies of one request go."""

    def send(self, reply: Reply) -> None: ...

    def fail(self, error: SpectoolError) -> None: ...

    def cancelled(self) -> bool: ...


@dataclass(slots=True, eq=False)
class ReplyBuilder:
    """Turns the chunks of one request into replies."""

    request: TextRequest
    sink: ReplySink
    stream: TextStream
    counters: SpeculationCounters
    held: HeldText = field(init=False)
    whole: list[str] = field(default_factory=list)
    draft_tokens: int = 0
    accepted_tokens: int = 0
    output_tokens: int = 0
    drafts: int = 0  # verify steps with draft tokens
    arrived: float = field(default_factory=perf_counter)
    first_token: float | None = None

    def __post_init__(self) -> None:
        self.held = HeldText(self.request.stop_words)
        if not self.request.exclude_input:
            self.whole.append(self.request.text)

    def take(self, chunk: Chunk) -> None:
        """Count the chunk and send what it adds to the text."""
        self._count(chunk)
        if chunk.finish_reason == "cancelled":
            self.sink.fail(CancelledError())
            return
        if chunk.finish_reason == "failed":
            self.sink.fail(RunError(chunk.error))
            return
        final = chunk.finish_reason is not None
        text = self.held.push(self.stream.push(chunk.tokens))
        if final:
            text += self.held.push(self.stream.finish()) + self.held.finish()
        self.whole.append(text)
        if final or (self.request.stream and text):
            self._send(final)

    def _send(self, final: bool) -> None:
        text = "".join(self.whole)
        self.whole.clear()
        reply = Reply(
            text,
            self.draft_tokens,
            self.accepted_tokens,
            with_counts=self.request.return_perf_metrics,
            final=final,
            output_tokens=self.output_tokens if self.request.return_num_output_tokens else None,
        )
        self.sink.send(reply)

    def _count(self, chunk: Chunk) -> None:
        self.output_tokens += len(chunk.tokens)
        self.draft_tokens += chunk.drafted
        self.accepted_tokens += chunk.accepted
        self.drafts += chunk.drafted > 0
        self.counters.add(len(chunk.tokens), chunk.drafted, chunk.accepted)
        now = perf_counter()
        if chunk.tokens and self.first_token is None:
            self.first_token = now
        if chunk.finish_reason:
            if chunk.finish_reason != "cancelled":
                self.counters.finished(self._figures(chunk.finish_reason, now))
            self.counters.flush()

    def _figures(self, reason: str, now: float) -> RequestFigures:
        return RequestFigures(
            finish_reason=reason,
            output_tokens=self.output_tokens,
            drafts=self.drafts,
            accepted=self.accepted_tokens,
            ttft_s=(self.first_token or now) - self.arrived,
            e2e_s=now - self.arrived,
        )
