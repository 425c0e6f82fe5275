"""What a load came to, from its samples: exact quantiles, of every sample, nothing binned."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from toolkit.measure.metrics import NS_PER_S, percentile, ratio
from toolkit.serving.load.sample import Sample

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)  # the last is the slowest
_MS = 1_000_000


@dataclass(frozen=True)
class Figures:
    """Rates are parts of all requests; times are milliseconds, by percentile."""

    requests: int
    wall_s: float  # from the first request to the last answer
    sending_s: float  # from the first request to the last one
    output_tokens: int  # those of cancelled requests included
    output_throughput: float  # tokens per second of wall_s
    steady_throughput: float  # of sending_s: without the end, when clients have nothing left to ask
    request_throughput: float  # answered ones, per second
    ttft_ms: dict[float, float]
    tpot_ms: dict[float, float]  # per request: (e2e - TTFT) / (output tokens - 1)
    icl_ms: dict[float, float]  # from one streamed response to the next: a verify step, not a token
    e2e_ms: dict[float, float]
    draft_tokens: int
    accepted_tokens: int
    acceptance_rate: float  # accepted / drafted; nan: nothing drafted
    acceptance_length: float  # tokens per verify step
    error_rate: float  # failed requests
    refusal_rate: float  # requests for which the server had no room
    cancel_rate: float  # requests whose clients went away
    late_ms: float  # how much later than due the slowest request was sent: this client's own fault
    messages: dict[str, int]  # of failures and refusals

    def to_json(self) -> dict[str, Any]:
        """With null where there is nothing to divide by."""
        named = {
            key: {f"p{p:g}": v for p, v in value.items()} if key.endswith("_ms") else value
            for key, value in asdict(self).items()
            if key != "late_ms"
        }
        return _without_nan({**named, "late_ms": self.late_ms})


def figures(samples: Sequence[Sample]) -> Figures:
    """Times are of answered requests; first tokens and gaps also of cancelled ones."""
    served = [sample for sample in samples if sample.outcome in ("ok", "cancelled")]
    answered = [sample for sample in samples if sample.outcome == "ok"]
    outcomes = Counter(sample.outcome for sample in samples)
    due = [sample.due_ns for sample in samples]
    first_ns, last_ns = min(due, default=0), max(due, default=0)
    sending_s = (last_ns - first_ns) / NS_PER_S
    wall_s = (max((sample.end_ns for sample in samples), default=0) - first_ns) / NS_PER_S
    tokens = sum(sample.output_tokens for sample in served)
    drafted = sum(sample.draft_tokens for sample in served)
    accepted = sum(sample.accepted_tokens for sample in served)
    return Figures(
        requests=len(samples),
        wall_s=wall_s,
        sending_s=sending_s,
        output_tokens=tokens,
        output_throughput=ratio(tokens, wall_s),
        steady_throughput=ratio(sum(_tokens_by(last_ns, sample) for sample in served), sending_s),
        request_throughput=ratio(len(answered), wall_s),
        ttft_ms=_quantiles([sample.ttft_ns for sample in served if sample.chunk_ns]),
        tpot_ms=_quantiles([tpot_ns(sample) for sample in answered]),
        icl_ms=_quantiles([gap for sample in served for gap in _gaps(sample.chunk_ns)]),
        e2e_ms=_quantiles([sample.e2e_ns for sample in answered]),
        draft_tokens=drafted,
        accepted_tokens=accepted,
        acceptance_rate=ratio(accepted, drafted),
        acceptance_length=_acceptance_length(served),
        error_rate=ratio(outcomes["failed"], len(samples)),
        refusal_rate=ratio(outcomes["refused"], len(samples)),
        cancel_rate=ratio(outcomes["cancelled"], len(samples)),
        late_ms=max((sample.late_ns for sample in samples), default=0) / _MS,
        messages=dict(Counter(sample.message for sample in samples if sample.message)),
    )


def tpot_ns(sample: Sample) -> float:
    """nan for a request of one token."""
    last = sample.chunk_ns[-1] if sample.chunk_ns else 0
    return ratio(last - sample.ttft_ns, sample.output_tokens - 1)


def _tokens_by(time_ns: int, sample: Sample) -> float:
    """Output tokens up to then: the first response brings one, the others share the rest evenly."""
    came = sum(sample.due_ns + at <= time_ns for at in sample.chunk_ns)
    if came in (0, len(sample.chunk_ns)):
        return sample.output_tokens if came else 0.0
    return 1 + (sample.output_tokens - 1) * (came - 1) / (len(sample.chunk_ns) - 1)


def _acceptance_length(samples: Sequence[Sample]) -> float:
    """1 + accepted / verify steps. Every step emits one token more than it accepts, and the first
    token of a request comes from its prompt: so the steps follow from the counts."""
    accepted = sum(sample.accepted_tokens for sample in samples)
    steps = sum(
        sample.output_tokens - 1 - sample.accepted_tokens
        for sample in samples
        if sample.output_tokens
    )
    return 1 + ratio(accepted, steps) if accepted and steps > 0 else math.nan


def _gaps(arrivals: Sequence[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(arrivals)]


def _quantiles(values_ns: Sequence[float]) -> dict[float, float]:
    return {p: percentile(values_ns, p) / _MS for p in PERCENTILES}


def _without_nan(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nan(value)
        if isinstance(value, dict)
        else None
        if isinstance(value, float) and math.isnan(value)
        else value
        for key, value in values.items()
    }
