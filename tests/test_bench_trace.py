"""Two choices measured against each other, request by request."""

from dataclasses import asdict

import pytest

from bench.trace import paired_ratio, pooled_tpots
from tests.tuning.made_runs import rounds_of


def test_requests_are_compared_with_themselves():
    # The medians are 12 and 12; of the same requests k = 4 takes 1.2, 1.5 and 0.5 times.
    rounds = rounds_of({2: [10.0], 4: [12.0]}, {2: [12.0], 4: [18.0]}, {2: [14.0], 4: [7.0]})
    records = [asdict(r) for runs in rounds.values() for run in runs for r in run.requests]
    tpots = pooled_tpots(records)
    assert sorted(ns / 1e6 for ns in tpots[4].values()) == pytest.approx([7, 12, 18])
    found = paired_ratio(tpots[4], tpots[2])
    assert found.value == pytest.approx(1.2)
    assert (found.low, found.high) == pytest.approx((0.5, 1.5))


def test_a_request_without_a_second_token_has_no_tpot():
    rounds = rounds_of({2: [10.0], 4: [12.0]}, {2: [12.0], 4: [18.0]})
    records = [asdict(r) for runs in rounds.values() for run in runs for r in run.requests]
    records[0]["output_tokens"] = 1
    assert {k: len(found) for k, found in pooled_tpots(records).items()} == {2: 1, 4: 2}
