"""What one request of a load came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from toolkit.serving.failures import no_room

# refused: the server said at once that it has no room, as it should; failed: anything else.
Outcome = Literal["ok", "cancelled", "refused", "failed"]


@dataclass(slots=True)
class Sample:
    """Times are nanoseconds after the request was due, which is when an open load sends it."""

    due_ns: int  # on the clock that all samples share
    late_ns: int = 0  # how much later this client really sent it
    outcome: Outcome = "ok"
    message: str = ""
    chunk_ns: list[int] = field(default_factory=list)  # arrival of each response with text
    e2e_ns: int = 0
    output_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    text: str = ""

    @property
    def ttft_ns(self) -> int:
        return self.chunk_ns[0] if self.chunk_ns else 0

    @property
    def end_ns(self) -> int:
        return self.due_ns + self.e2e_ns

    def fail(self, message: str) -> None:
        self.outcome = "refused" if no_room(message) else "failed"
        self.message = message
