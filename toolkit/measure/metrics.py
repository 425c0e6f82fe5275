"""Rates derived from records. Counts are added over requests first, then divided."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from toolkit.measure.records import GroupRun, RequestRecord

NS_PER_S = 1_000_000_000
LOOP_RATIO = 0.5  # of distinct bigrams; running text of 64 tokens has above 0.9


def ratio(numerator: float, denominator: float) -> float:
    """nan where there is nothing to divide by."""
    return numerator / denominator if denominator else math.nan


def acceptance_rate(records: Iterable[RequestRecord]) -> float:
    """accepted / drafted, 0..1."""
    records = list(records)
    return ratio(sum(r.accepted_tokens for r in records), sum(r.draft_tokens for r in records))


def acceptance_length(records: Iterable[RequestRecord]) -> float:
    """1 + accepted / verify_steps: the bonus or recovered token counts, the prefill token not."""
    records = list(records)
    return 1 + ratio(sum(r.accepted_tokens for r in records), sum(r.verify_steps for r in records))


def joint_acceptance_by_position(records: Iterable[RequestRecord], k: int) -> list[float]:
    """[k] P(the first j + 1 drafts all accepted), over all verify steps."""
    accepted = [count for record in records for count in record.accepted_per_step]
    return [ratio(sum(count > j for count in accepted), len(accepted)) for j in range(k)]


def conditional_acceptance_by_position(records: Iterable[RequestRecord], k: int) -> list[float]:
    """[k] P(draft j accepted, given that it was drafted and all before it were accepted)."""
    steps = [
        (drafted, accepted)
        for record in records
        for drafted, accepted in zip(record.drafted_per_step, record.accepted_per_step, strict=True)
    ]
    return [
        ratio(
            sum(accepted > j for _, accepted in steps),
            sum(accepted >= j and drafted > j for drafted, accepted in steps),
        )
        for j in range(k)
    ]


def tpot_ns(record: RequestRecord) -> float:
    """(e2e - TTFT) / (output tokens - 1); nan for a single token."""
    return ratio(record.e2e_ns - record.ttft_ns, record.output_tokens - 1)


def tokens_per_s_per_user(record: RequestRecord) -> float:
    """output tokens / e2e: TTFT is included."""
    return ratio(record.output_tokens * NS_PER_S, record.e2e_ns)


def icl_ns(record: RequestRecord) -> list[int]:
    """Gaps between streamed chunks; with speculation a chunk is a verify step, not a token."""
    return [
        later - earlier
        for earlier, later in zip(record.chunk_ns, record.chunk_ns[1:], strict=False)
    ]


def output_throughput(runs: Iterable[GroupRun]) -> float:
    """Output tokens per second of wall time, prefill included, all requests of a batch together."""
    runs = list(runs)
    return ratio(sum(r.emitted_tokens for r in runs) * NS_PER_S, sum(r.wall_ns for r in runs))


def unique_bigram_ratio(record: RequestRecord) -> float:
    """Distinct over all pairs of neighbouring output tokens; low in a degenerate loop."""
    return ratio(record.unique_bigrams, record.bigrams)


def loops(record: RequestRecord) -> bool:
    """Does the output repeat itself so much that its acceptance says nothing about real text?"""
    return record.bigrams >= 8 and unique_bigram_ratio(record) < LOOP_RATIO


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between neighbours; undefined (nan) values are left out."""
    defined = [value for value in values if not math.isnan(value)]
    return float(np.percentile(defined, percent)) if defined else math.nan
