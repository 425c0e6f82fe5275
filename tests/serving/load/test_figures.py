"""Figures of a load, by hand."""

from __future__ import annotations

import json
import math

import pytest

from toolkit.serving.load.figures import figures
from toolkit.serving.load.sample import Sample

MS = 1_000_000


def traced(due_ms: int = 0) -> Sample:
    """k = 4: the first token at 100 ms, then steps of 40 ms that accept 3, 0 and 2 of 4."""
    chunks = [100 * MS, 140 * MS, 180 * MS, 220 * MS]
    return Sample(
        due_ms * MS,
        chunk_ns=chunks,
        e2e_ns=221 * MS,
        output_tokens=9,
        draft_tokens=12,
        accepted_tokens=5,
    )


def test_the_worked_trace():
    found = figures([traced()])
    assert found.ttft_ms[50.0] == 100.0
    assert found.tpot_ms[50.0] == 15.0  # (220 - 100) / 8
    assert set(found.icl_ms.values()) == {40.0}
    assert found.acceptance_rate == pytest.approx(5 / 12)
    assert found.acceptance_length == pytest.approx(1 + 5 / 3)  # 3 verify steps
    assert found.wall_s == pytest.approx(0.221)
    assert found.output_throughput == pytest.approx(9 / 0.221)
    assert (found.error_rate, found.refusal_rate, found.cancel_rate) == (0.0, 0.0, 0.0)


def test_the_steady_part_ends_where_nothing_is_left_to_ask():
    # At 200 ms the last request goes out. Until then the first has its first token and 2 of the 3
    # responses that bring the other 8.
    found = figures([traced(), traced(due_ms=200)])
    assert found.sending_s == pytest.approx(0.2)
    assert found.steady_throughput == pytest.approx((1 + 8 * 2 / 3) / 0.2)
    assert found.output_throughput == pytest.approx(18 / 0.421)
    # One that was answered by then counts whole, and one load of one request has no such part.
    found = figures([traced(), traced(due_ms=221)])
    assert found.steady_throughput == pytest.approx(9 / 0.221)
    assert math.isnan(figures([traced()]).steady_throughput)


def test_percentiles_are_those_of_all_samples():
    samples = [Sample(0, chunk_ns=[i * MS], e2e_ns=i * MS, output_tokens=1) for i in range(1, 1002)]
    found = figures(samples)
    assert found.ttft_ms == {
        50.0: 501.0,
        90.0: 901.0,
        99.0: 991.0,
        99.9: pytest.approx(1000.0),
        100.0: 1001.0,
    }
    assert math.isnan(found.tpot_ms[50.0])  # single tokens have none


def test_failures_count_and_give_no_times():
    failed, refused = Sample(0, e2e_ns=5 * MS), Sample(0, e2e_ns=9 * MS)
    failed.fail("draft model out of order")
    refused.fail("the queue is full (256 requests wait already); try again later")
    gone = Sample(0, outcome="cancelled", chunk_ns=[50 * MS], e2e_ns=60 * MS, output_tokens=2)
    found = figures([traced(), failed, refused, gone])
    assert (found.error_rate, found.refusal_rate, found.cancel_rate) == (0.25, 0.25, 0.25)
    assert found.ttft_ms[100.0] == 100.0
    assert found.e2e_ms[50.0] == 221.0  # of the answered one alone
    assert found.output_tokens == 11
    assert len(found.messages) == 2


def test_wall_time_spans_all_requests():
    found = figures([traced(1000), traced(3000)])
    assert found.wall_s == pytest.approx(2.221)
    assert found.sending_s == pytest.approx(2.0)


def test_nothing_at_all_is_still_a_document():
    document = figures([]).to_json()
    assert document["tpot_ms"]["p50"] is None
    assert document["acceptance_rate"] is None
    assert json.loads(json.dumps(document, allow_nan=False)) == document
