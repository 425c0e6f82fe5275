"""Requests that come over the wire, and the tensors that go back."""

from __future__ import annotations

import math
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest

from toolkit.errors import InputError
from toolkit.serving.llmapi.client import answer_of
from toolkit.serving.llmapi.request import LlmRequest, llm_request
from toolkit.serving.llmapi.responses import draft_counts, nanoseconds, number, response_arrays


def arrays(**values):
    return {
        name: np.array([value.encode() if isinstance(value, str) else value])
        for name, value in {"text_input": "Hello", **values}.items()
    }


def test_what_a_client_leaves_out_is_the_llms_to_choose():
    request = llm_request(arrays(), decoupled=True)
    assert request == LlmRequest(text="Hello", sampling={"return_perf_metrics": True})


def test_sampling_is_plain_python_for_the_bindings():
    given = arrays(
        sampling_param_temperature=np.float32(0.7),
        sampling_param_top_k=np.int32(4),
        sampling_param_seed=np.uint64(2**64 - 1),
        sampling_param_max_tokens=np.int32(9),
        sampling_param_presence_penalty=np.float32(-0.5),
    )
    given["sampling_param_stop"] = np.array([b"a", b"b"], dtype=object)
    found = llm_request(given, decoupled=True).sampling
    assert found == {
        "temperature": 0.7, "top_k": 4, "seed": 2**64 - 1, "max_tokens": 9,
        "presence_penalty": -0.5, "stop": ["a", "b"], "return_perf_metrics": True,
    }  # fmt: skip
    assert {type(value) for value in found.values()} == {float, int, list, bool}


def test_everything_that_is_wrong_is_said_at_once():
    given = arrays(
        sampling_param_max_tokens=np.int32(-1),
        sampling_param_top_p=np.float32(math.nan),
        streaming=True,
    )
    given["text_input"] = np.array([b"\xff"], dtype=object)
    with pytest.raises(InputError) as error:
        llm_request(given, decoupled=False)
    for word in ("text_input: not UTF-8", "max_tokens: -1", "top_p: nan", "streaming: this deploy"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    "value", [0.5, "0.5", b"0.5", np.float32(0.5), np.array([0.5]), np.array([b"0.5"], object)]
)
def test_a_figure_is_read_as_number_or_as_text(value):
    assert number(value) == 0.5


def test_upstreams_strings_make_the_same_answer_as_our_numbers():
    ours = {
        "text_output": "t", "acceptance_rate": 0.75, "total_accepted_draft_tokens": 3,
        "total_draft_tokens": 4,
    }  # fmt: skip
    theirs = {name: str(value) for name, value in ours.items()}
    assert answer_of(ours) == answer_of(theirs)
    assert answer_of(theirs).total_draft_tokens == 4


def test_times_are_whole_nanoseconds():
    assert nanoseconds(timedelta(seconds=3, microseconds=7)) == 3_000_007_000
    assert nanoseconds(0.25) == 250_000_000


def output(**more):
    return SimpleNamespace(text="abc", finish_reason="stop", stop_reason=None, **more)


def test_outputs_have_the_declared_types_and_only_what_was_asked_for():
    metrics = SimpleNamespace(
        kv_cache_metrics=SimpleNamespace(
            num_reused_blocks=1, num_missed_blocks=2, num_new_allocated_blocks=3,
            num_total_allocated_blocks=4, kv_cache_hit_rate=0.5,
        ),
        timing_metrics=SimpleNamespace(
            arrival_time=timedelta(seconds=1), first_scheduled_time=timedelta(seconds=2),
            first_token_time=timedelta(seconds=3), last_token_time=timedelta(seconds=4),
        ),
        speculative_decoding=SimpleNamespace(
            acceptance_rate=0.5, total_accepted_draft_tokens=2, total_draft_tokens=4
        ),
    )  # fmt: skip
    one = output(request_perf_metrics=metrics)
    found = response_arrays(LlmRequest(text="x", perf_metrics=True, stop_reason=True), [one])
    assert found["kv_cache_missed_block"].tolist() == [2]
    assert found["last_token_time_ns"].dtype == np.int64
    assert found["total_draft_tokens"].dtype == np.int32
    assert found["acceptance_rate"].dtype == np.float32
    assert found["stop_reason"].tolist() == [b"None"]
    assert draft_counts(one) == (4, 2)
    assert set(response_arrays(LlmRequest(text="x"), [one], start=1)) == {"text_output"}
    assert response_arrays(LlmRequest(text="x"), [one], start=1)["text_output"][0] == b"bc"


def test_a_request_that_drafted_nothing_has_no_counts():
    metrics = SimpleNamespace(kv_cache_metrics=None, timing_metrics=None, speculative_decoding=None)
    one = output(request_perf_metrics=metrics)
    found = response_arrays(LlmRequest(text="x", perf_metrics=True), [one])
    assert set(found) == {"text_output"}
    assert draft_counts(one) == (0, 0)
    assert draft_counts(output()) == (0, 0)
    logprob = response_arrays(LlmRequest(text="x", cumulative_logprob=True), [output()])
    assert math.isnan(logprob["cumulative_logprob"][0])
