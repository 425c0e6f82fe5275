"""Tensors of TensorRT-LLM's contract as calls."""

from __future__ import annotations

import numpy as np

from toolkit.serving.llm_request import llm_request


def arrays(**more):
    return {
        "input_ids": np.array([[4, 5, 6]], np.int32),
        "input_lengths": np.array([3], np.int32),
        "request_output_len": np.array([8], np.int32),
        **more,
    }


def test_the_contract_becomes_a_call():
    request = llm_request(
        arrays(
            draft_input_ids=np.array([[7, 8]], np.int32),
            draft_logits=np.ones((1, 2, 10), np.float32),
            end_id=np.array([2], np.int32),
            stop_words_list=np.array([[[1, 2, 3, 0], [2, 3, -1, -1]]], np.int32),
            temperature=np.array([0.5], np.float32),
            runtime_top_k=np.array([4], np.int32),
            seed=np.array([9], np.uint64),
            streaming=np.array([False]),
        ),
        "id",
    )
    call = request.call
    assert request.problems == []
    assert (call.input_ids, call.draft_input_ids) == ((4, 5, 6), (7, 8))
    assert call.draft_logits.shape == (2, 10)
    # The words are tokens 1 2 and 3: offsets 2 and 3.
    assert call.stop_sequences == ((1, 2), (3,))
    assert (call.end_ids, call.request_id) == (frozenset({2}), "id")
    assert (call.sampling.temperature, call.sampling.top_k, call.sampling.seed) == (0.5, 4, 9)


def test_input_lengths_cuts_the_padding():
    request = llm_request(arrays(input_lengths=np.array([2], np.int32)), "")
    assert request.call.input_ids == (4, 5)


def test_what_cannot_be_is_said():
    request = llm_request(
        arrays(
            input_lengths=np.array([4], np.int32),
            stop_words_list=np.array([[[1, 2], [2, 1]]], np.int32),
            runtime_top_p=np.array([np.inf], np.float32),
            streaming=np.array([True]),
        ),
        "",
    )
    text = "; ".join(request.problems)
    assert "input_lengths: 4, but input_ids has 3 tokens" in text
    assert "stop_words_list: offsets [2, 1] do not rise within 2" in text
    assert "top_p: inf" in text
    assert "streaming: one response is all there is" in text


def test_a_request_may_say_whether_the_input_comes_back():
    assert llm_request(arrays(), "").with_input is None
    told = llm_request(arrays(exclude_input_in_output=np.array([True])), "")
    assert told.with_input is False


def test_no_stop_words_are_one_filler():
    request = llm_request(arrays(stop_words_list=np.array([[[0], [-1]]], np.int32)), "")
    assert request.call.stop_sequences == ()
