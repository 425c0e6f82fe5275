"""Records for tests, with defaults for everything that a test does not care about."""

from __future__ import annotations

from typing import Any

from toolkit.measure.records import GroupRun, RequestRecord

MS = 1_000_000


def record(**given: Any) -> RequestRecord:
    """One request: prefill at 100 ms, and then a token every 10 ms unless told otherwise.

    Chunks arrive evenly.
    """
    tokens = given.get("output_tokens", 11)
    drafted = tuple(given.get("drafted_per_step", ()))
    values: dict[str, Any] = {
        "domain": "edit",
        "prompt_id": "edit-01",
        "batch_size": 1,
        "k": 0,
        "round": "r",
        "temperature": 0.0,
        "prompt_tokens": 20,
        "prefill_tokens": 1,
        "output_tokens": tokens,
        "verify_steps": len(drafted) or tokens - 1,
        "drafted_per_step": drafted or (0,) * (tokens - 1),
        "accepted_per_step": (0,) * (len(drafted) or tokens - 1),
        "ttft_ns": 100 * MS,
        "e2e_ns": (100 + 10 * (tokens - 1)) * MS,
        "bigrams": tokens - 1,
        "unique_bigrams": tokens - 1,
        "finish": "length",
    }
    values |= given
    steps, ttft = values["verify_steps"], values["ttft_ns"]
    step = (values["e2e_ns"] - ttft) // max(1, steps)
    values.setdefault("chunk_ns", tuple(ttft + step * i for i in range(steps + 1)))
    return RequestRecord(**values)


def timed(tpot_ms: float, **given: Any) -> RequestRecord:
    """Eleven tokens at this TPOT."""
    return record(e2e_ns=round((100 + 10 * tpot_ms) * MS), **given)


def run(*records: RequestRecord, **given: Any) -> GroupRun:
    """The records of one group; wall time and tokens follow from them."""
    first = records[0]
    values: dict[str, Any] = {
        "domain": first.domain,
        "batch_size": first.batch_size,
        "k": first.k,
        "round": first.round,
        "wall_ns": max(each.e2e_ns for each in records),
        "emitted_tokens": sum(each.output_tokens for each in records),
        "requests": records,
    }
    return GroupRun(**(values | given))


# The worked trace: k = 4, prefill emits one token at 100 ms, then three steps of 40 ms accept 3, 0
# and 2 and emit 4 + 1 + 3 = 8.
WORKED = record(
    k=4,
    output_tokens=9,
    verify_steps=3,
    drafted_per_step=(4, 4, 4),
    accepted_per_step=(3, 0, 2),
    ttft_ns=100 * MS,
    e2e_ns=220 * MS,
    chunk_ns=(100 * MS, 140 * MS, 180 * MS, 220 * MS),
)
