"""Acceptance in the words of other tools: same counts, other formulas.

They differ in whether the bonus or recovered token and the prefill token count, and in what they
divide by. `None`: the tool has no such number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.measure.metrics import ratio
from toolkit.measure.records import RequestRecord


@dataclass(frozen=True)
class Counts:
    """Sums over requests; k is the draft length that was asked for."""

    k: int
    requests: int
    output_tokens: int
    verify_steps: int
    drafted: int
    accepted: int


def count(records: Sequence[RequestRecord]) -> Counts:
    """Add the records of one draft length up."""
    return Counts(
        k=max((record.k for record in records), default=0),
        requests=len(records),
        output_tokens=sum(record.output_tokens for record in records),
        verify_steps=sum(record.verify_steps for record in records),
        drafted=sum(record.draft_tokens for record in records),
        accepted=sum(record.accepted_tokens for record in records),
    )


Formula = Callable[[Counts], float]


@dataclass(frozen=True)
class Dialect:
    """What a tool prints as acceptance rate and as acceptance length."""

    rate: Formula | None
    length: Formula | None


def _accepted_of_drafted(c: Counts) -> float:
    return ratio(c.accepted, c.drafted)


def _length(c: Counts) -> float:
    return 1 + ratio(c.accepted, c.verify_steps)


def _length_with_prefill(c: Counts) -> float:
    """Prefill counts as a step that emits a token."""
    return ratio(c.output_tokens, c.verify_steps + c.requests)


DIALECTS = {
    "spectool": Dialect(_accepted_of_drafted, _length),
    "aiperf": Dialect(_accepted_of_drafted, _length),
    "vllm": Dialect(_accepted_of_drafted, _length),
    "llama.cpp": Dialect(_accepted_of_drafted, _length),
    # It takes every iteration, prefill included, to have drafted max_draft_len tokens.
    "trtllm-bench": Dialect(
        lambda c: ratio(c.accepted, c.k * (c.verify_steps + c.requests)), _length_with_prefill
    ),
    # Before its change of 2025 the bonus or recovered token was left out.
    "vllm-2024": Dialect(_accepted_of_drafted, lambda c: ratio(c.accepted, c.verify_steps)),
    # Emitted over verified tokens: never 0, even when no draft token is accepted.
    "sglang": Dialect(
        lambda c: ratio(c.accepted + c.verify_steps, c.verify_steps * (c.k + 1)), _length
    ),
    "specforge": Dialect(None, lambda c: ratio(c.output_tokens, c.verify_steps)),
    "modelopt": Dialect(_length_with_prefill, _length_with_prefill),
    "triton": Dialect(_accepted_of_drafted, None),
}
