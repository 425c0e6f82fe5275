"""Counters as Prometheus gets them."""

from __future__ import annotations

from collections import Counter

import pytest

from toolkit.serving.counters import RequestFigures, RequestGauge, SpeculationCounters


def test_steps_add_up_by_position():
    seen = Counter()
    counters = SpeculationCounters(
        lambda name, labels, amount: seen.update({(name, labels.get("position")): amount})
    )
    counters.add(1, 0, 0)  # prefill
    counters.add(4, 4, 3)
    counters.add(1, 4, 0)
    counters.add(3, 4, 2)
    counters.flush()
    assert seen == {
        ("generation_tokens_total", None): 9,
        ("spec_decode_num_drafts_total", None): 3,
        ("spec_decode_num_draft_tokens_total", None): 12,
        ("spec_decode_num_accepted_tokens_total", None): 5,
        ("spec_decode_num_accepted_tokens_per_pos_total", "0"): 2,
        ("spec_decode_num_accepted_tokens_per_pos_total", "1"): 2,
        ("spec_decode_num_accepted_tokens_per_pos_total", "2"): 1,
    }


def test_nothing_is_counted_twice():
    seen = Counter()
    counters = SpeculationCounters(lambda name, labels, amount: seen.update({name: amount}))
    counters.add(2, 0, 0)
    counters.flush()
    counters.flush()
    assert seen == {"generation_tokens_total": 2}


def figures(**changes) -> RequestFigures:
    given = {
        "finish_reason": "stop", "output_tokens": 11, "drafts": 4, "accepted": 6, "ttft_s": 0.5,
        "e2e_s": 2.5,
    }  # fmt: skip
    return RequestFigures(**given | changes)


def observed(*done: RequestFigures) -> tuple[Counter, list]:
    counted, seen = Counter(), []
    counters = SpeculationCounters(
        lambda name, labels, amount: counted.update({(name, *labels.values()): amount}),
        lambda name, labels, value: seen.append((name, *labels.values(), pytest.approx(value))),
    )
    for one in done:
        counters.finished(one)
    counters.flush()
    return counted, seen


def test_a_finished_request_is_one_observation_of_each():
    counted, seen = observed(figures())
    assert counted == {("request_success_total", "stop"): 1}
    assert seen == [
        ("time_to_first_token_seconds", 0.5),
        ("e2e_request_latency_seconds", 2.5),
        ("time_per_output_token_seconds", "true", 0.2),  # 2 s for 10 tokens after the first
        ("spec_decode_acceptance_length", 2.5),  # 6 accepted in 4 steps, and one more in each
    ]


def test_what_drafted_nothing_is_timed_apart_and_has_no_acceptance_length():
    _, seen = observed(figures(drafts=0, accepted=0), figures(output_tokens=1))
    names = [entry[:2] for entry in seen if entry[0].startswith(("time_per", "spec"))]
    assert names == [
        ("time_per_output_token_seconds", "false"),
        ("spec_decode_acceptance_length", pytest.approx(2.5)),
    ]


def test_time_is_spent_on_drafts_and_on_the_target():
    counted = Counter()
    counters = SpeculationCounters(lambda name, labels, amount: counted.update({name: amount}))
    counters.spend(0.25, 0.5)
    counters.spend(0.25, 1.0)
    counters.flush()
    counters.flush()
    assert counted == {
        "spec_decode_draft_seconds_total": 0.5,
        "spec_decode_verify_seconds_total": 1.5,
    }


def test_requests_run_up_to_the_batch_and_wait_beyond_it():
    shown = []
    gauge = RequestGauge(lambda running, waiting: shown.append((running, waiting)), 2)
    for change in (1, 1, 1, -1):
        gauge.change(change)
    gauge.set(5)
    assert shown == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 0), (2, 3)]
