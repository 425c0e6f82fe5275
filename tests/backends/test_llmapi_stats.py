"""Statistics as integers; another language is refused by the name of the field."""

from __future__ import annotations

import json
import math

import pytest

from toolkit.backends.llmapi_stats import (
    iteration_stats,
    prometheus_counts,
    prometheus_samples,
    request_metrics,
)
from toolkit.errors import RunError

SPECULATIVE = {"numDraftTokens": 8, "numAcceptedTokens": 3, "numRequestsWithDraftTokens": 2}


def iteration(**changes):
    return {"iter": 0, "numActiveRequests": 2, "specDecodingStats": dict(SPECULATIVE)} | changes


def test_iterations_are_objects_or_their_text():
    stats = iteration_stats([iteration(), json.dumps(iteration(numActiveRequests=5))], "here")
    assert (stats.draft_tokens, stats.accepted_tokens, stats.verify_steps) == (16, 6, 4)
    assert (stats.iterations, stats.max_active_requests) == (2, 5)
    assert stats.acceptance_length == 2.5


def test_iterations_without_drafts_count_as_iterations_only():
    stats = iteration_stats([iteration(specDecodingStats=None)], "here")
    assert (stats.iterations, stats.verify_steps) == (1, 0)
    assert math.isnan(stats.acceptance_length)
    assert math.isnan(stats.acceptance_rate)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{", "here: not JSON"),
        (3, "expected objects, found int"),
        (iteration(numActiveRequests="2"), "numActiveRequests is '2'"),
        (iteration(specDecodingStats={"numDraftTokens": 1}), "numAcceptedTokens is None"),
        (iteration(specDecodingStats=[]), r"specDecodingStats is \[\]"),
    ],
)
def test_another_language_is_refused_by_field(entry, said):
    with pytest.raises(RunError, match=said):
        iteration_stats([entry], "here")


def test_a_request_without_speculation_drafted_nothing():
    times = dict.fromkeys(
        ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time"), 1.5
    )
    entry = {
        "request_id": 4,
        "perf_metrics": {"first_iter": 2, "last_iter": 3, "timing_metrics": times},
    }
    (found,) = request_metrics([entry], "here")
    assert (found.draft_tokens, found.accepted_tokens, found.arrival_ns) == (0, 0, 1_500_000_000)
    del times["arrival_time"]
    with pytest.raises(RunError, match="arrival_time is None"):
        request_metrics([entry], "here")


def test_label_sets_add_and_stamps_are_left_out():
    text = (
        '# TYPE a counter\ntrtllm_a_total{x="1"} 2.0\ntrtllm_a_total{x="2, y"} 3.0\n'
        'trtllm_a_created{x="1"} 1.7e+09\n\nb 4 1700000000\nc NaN\n'
    )
    samples = prometheus_samples(text, "here")
    assert samples["a_total"] == 5.0
    assert samples["b"] == 4.0
    assert math.isnan(samples["c"])
    assert "a_created" not in samples


def test_the_newer_name_of_a_counter_is_taken_when_it_is_the_only_one():
    name = "trtllm_spec_decode_"
    text = f"{name}drafted_tokens_total 7.0\n{name}accepted_tokens_total 2.0\n"
    counts = prometheus_counts(text, "here")
    assert (counts.draft_tokens, counts.accepted_tokens, counts.finished_requests) == (7, 2, None)


@pytest.mark.parametrize("line", ["<html>", "a{x=} b", "a"])
def test_what_is_no_sample_is_shown_with_its_line(line):
    with pytest.raises(RunError, match="here: line 2 is no Prometheus sample"):
        prometheus_samples(f"a 1\n{line}\n", "here")
