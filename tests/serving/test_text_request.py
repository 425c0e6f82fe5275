"""What may come over the wire, and what is said about the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from toolkit.errors import InputError
from toolkit.serving.text_request import text_request
from toolkit.speculation.grammar import Guide


def tensors(**values):
    """As a client of batch size 1 sends them."""
    return {name: np.array([np.atleast_1d(value)]) for name, value in values.items()}


def asked(**values):
    return {**tensors(text_input=np.array(b"hi", object), max_tokens=np.int32(5)), **values}


def test_what_is_left_out_has_a_meaning():
    request = text_request(asked(), max_draft_len=4)
    assert (request.text, request.max_tokens) == ("hi", 5)
    assert request.sampling.greedy
    assert request.exclude_input
    assert not request.stream
    assert request.num_draft_tokens is None
    tokens = request.tokens([1, 2], frozenset({7, 8}))
    assert tokens.stop_tokens == {7, 8}


def test_every_knob_arrives():
    request = text_request(
        asked(
            **tensors(
                temperature=np.float32(0.7),
                top_k=np.int32(5),
                top_p=np.float32(0.9),
                seed=np.uint64(2**64 - 1),
                end_id=np.int32(3),
                num_draft_tokens=np.int32(0),
                stream=np.bool_(True),
                exclude_input_in_output=np.bool_(False),
                return_perf_metrics=np.bool_(True),
                stop_words=np.array([b"a", "한".encode()], object),
            )
        ),
        max_draft_len=4,
    )
    # As it was written, not as its 32 bits read: 0.699999988.
    assert request.sampling.temperature == 0.7
    assert request.sampling.top_p == 0.9
    assert (request.sampling.top_k, request.sampling.seed) == (5, 2**64 - 1)
    assert request.stop_words == ("a", "한")
    assert request.tokens([1], frozenset({9})).stop_tokens == {3}
    assert request.tokens([1], frozenset({9})).draft_len == 0
    assert (request.stream, request.exclude_input, request.return_perf_metrics) == (
        True,
        False,
        True,
    )


def test_a_negative_end_id_means_never_stop():
    request = text_request(asked(**tensors(end_id=np.int32(-1))), max_draft_len=4)
    assert request.tokens([1], frozenset({9})).stop_tokens == frozenset()


def test_without_a_seed_two_requests_draw_differently():
    seeds = {text_request(asked(), max_draft_len=4).sampling.seed for _ in range(8)}
    assert len(seeds) == 8


def test_all_problems_are_named_at_once():
    with pytest.raises(InputError) as error:
        text_request(
            asked(
                **tensors(
                    max_tokens=np.int32(-5),
                    temperature=np.float32("nan"),
                    top_p=np.float32(1.5),
                    top_k=np.int32(-1),
                    num_draft_tokens=np.int32(9),
                )
            ),
            max_draft_len=4,
        )
    message = str(error.value)
    for name in ("max_tokens: -5", "temperature: nan", "top_p: 1.5", "top_k: -1"):
        assert name in message
    assert "num_draft_tokens: 9, at most 4" in message


def guide(type=None, text=None):
    name = "guided_decoding_guide"
    given = {f"{name}_type": type, name: text}
    return asked(**tensors(**{k: np.array(v, object) for k, v in given.items() if v is not None}))


def test_a_grammar_comes_as_its_type_and_its_text():
    assert text_request(asked(), max_draft_len=4).guide is None
    found = text_request(guide(b"regex", b"a|b"), max_draft_len=4).guide
    assert found == Guide("regex", "a|b")
    assert text_request(guide(b"json"), max_draft_len=4).guide == Guide("json")
    assert text_request(guide(b"", b""), max_draft_len=4).guide is None


@pytest.mark.parametrize(
    ("type", "text", "message"),
    [
        (b"xml", b"a", "'xml', expected one of json, json_schema, regex, ebnf_grammar"),
        (None, b"a", "without guided_decoding_guide_type"),
        (b"regex", b"a" * (2**20 + 1), "longer than 1048576 characters"),
    ],
)
def test_half_a_grammar_is_refused(type, text, message):
    with pytest.raises(InputError, match=message):
        text_request(guide(type, text), max_draft_len=4)


def test_draft_tokens_of_a_deployment_without_a_drafter_are_refused():
    with pytest.raises(InputError, match="has no drafter"):
        text_request(asked(**tensors(num_draft_tokens=np.int32(1))), max_draft_len=0)


def test_text_that_is_not_utf8_is_refused_with_the_place():
    with pytest.raises(InputError, match=r"text_input: not UTF-8: .* at byte 2"):
        text_request(asked(text_input=np.array([[b"ab\xff"]], object)), max_draft_len=4)


def test_a_batch_of_two_is_refused():
    two = np.array([[b"a"], [b"b"]], object)
    with pytest.raises(InputError, match="text_input: 2 values, expected one"):
        text_request(asked(text_input=two), max_draft_len=4)


NAMES = ("max_tokens", "temperature", "top_k", "top_p", "seed", "end_id", "num_draft_tokens")
NUMBERS = st.sampled_from([np.int32, np.float32, np.uint64]).flatmap(
    lambda kind: arrays(kind, array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=2))
)


@given(st.dictionaries(st.sampled_from(NAMES), NUMBERS))
@settings(max_examples=200, deadline=None)
def test_whatever_comes_is_a_request_or_an_input_error(values):
    try:
        request = text_request(asked(**values), max_draft_len=4)
    except InputError:
        return
    assert request.max_tokens >= 1
    assert 0.0 <= request.sampling.temperature <= 100.0
    assert 0.0 < request.sampling.top_p <= 1.0
