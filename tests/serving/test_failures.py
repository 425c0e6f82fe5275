"""Which of Triton's codes a failure becomes."""

from __future__ import annotations

import pytest

from toolkit.errors import CapacityError, InputError, MissingDependencyError, RunError
from toolkit.serving.failures import (
    CancelledError,
    code_of,
    no_room,
    queue_full,
    said_by,
    stopping,
    unexpected,
)
from toolkit.speculation.grammar import GrammarError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("max_tokens: -1"), "INVALID_ARG"),
        (CapacityError("no KV memory"), "UNAVAILABLE"),
        (queue_full(3), "UNAVAILABLE"),
        (stopping(), "UNAVAILABLE"),
        (CancelledError(), "CANCELLED"),
        (RunError("boom"), "INTERNAL"),
        (GrammarError("no token is allowed here"), "INTERNAL"),
        (MissingDependencyError("llguidance is not installed"), "INTERNAL"),
    ],
)
def test_a_code_says_what_to_do_next(error, code):
    assert code_of(error) == code


def test_a_bug_keeps_the_name_of_its_error():
    assert str(unexpected(KeyError("a"))) == "KeyError: 'a'"
    ours = InputError("no")
    assert unexpected(ours) is ours


# What Triton 2.51 says of a model that it has unloaded.
UNLOADED = (
    "Model tensorrt_llm - Error when running inference: Failed for execute the inference request. "
    "Model 'tensorrt_llm' is not ready."
)


@pytest.mark.parametrize(
    ("message", "kind", "said"),
    [
        (UNLOADED, CapacityError, "tensorrt_llm: not loaded now; try again later"),
        (str(queue_full(2)), CapacityError, "tensorrt_llm: the queue is full (2 requests wait"),
        ("no KV memory for 2 more block(s)", CapacityError, "tensorrt_llm: no KV memory for 2"),
        ("input_ids: no tokens", RunError, "tensorrt_llm: input_ids: no tokens"),
    ],
)
def test_what_another_model_says_is_told_apart_by_its_words(message, kind, said):
    error = said_by("tensorrt_llm", message)
    assert type(error) is kind
    assert str(error).startswith(said)


def test_a_model_that_is_not_loaded_is_no_full_server():
    assert not no_room(str(said_by("tensorrt_llm", UNLOADED)))
