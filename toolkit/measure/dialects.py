"""Acceptance in the words of other tools: same counts, other formulas.

They differ in whether the bonus or recovered token and the prefill token count, and in what they
divide by. `None`: the tool has no such number. TPOT is (e2e - TTFT) / (output tokens - 1) in all of
them, while an "ITL" may be the gap between two tokens or between two chunks, a verify step apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.errors import UnknownNameError
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
    """What a tool prints as acceptance rate, as acceptance length and as inter-token latency."""

    rate: Formula | None
    length: Formula | None
    # (TPOT, mean gap between chunks) -> what it calls ITL.
    itl: Callable[[float, float], float] | None = None

    def describe(self, counts: Counts) -> dict[str, Any]:
        """The two acceptance numbers; None where the tool has none or it is undefined."""
        return {
            "acceptance_rate": _value(self.rate, counts),
            "acceptance_length": _value(self.length, counts),
        }


def dialect(name: str) -> Dialect:
    """The one that `--as` names."""
    if name not in DIALECTS:
        raise UnknownNameError("dialect", name, DIALECTS)
    return DIALECTS[name]


def _value(formula: Formula | None, counts: Counts) -> float | None:
    value = math.nan if formula is None else formula(counts)
    return None if math.isnan(value) else value


def _accepted_of_drafted(c: Counts) -> float:
    return ratio(c.accepted, c.drafted)


def _length(c: Counts) -> float:
    return 1 + ratio(c.accepted, c.verify_steps)


def _length_with_prefill(c: Counts) -> float:
    """Prefill counts as a step that emits a token."""
    return ratio(c.output_tokens, c.verify_steps + c.requests)


def _per_token(tpot: float, chunk_gap: float) -> float:
    return tpot


def _per_chunk(tpot: float, chunk_gap: float) -> float:
    return chunk_gap


DIALECTS = {
    "spectool": Dialect(_accepted_of_drafted, _length),
    "aiperf": Dialect(_accepted_of_drafted, _length, _per_token),
    "vllm": Dialect(_accepted_of_drafted, _length, _per_chunk),
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
