"""What a draft model answers, sensible or not."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.serving.remote import _draft

SENT = (1, 2, 3)


def answer(tokens, rows=None):
    found = {
        "output_ids": np.array([[tokens]], np.int32).reshape(1, 1, -1),
        "sequence_length": np.array([[len(tokens)]], np.int32),
    }
    if rows is not None:
        found["generation_logits"] = np.arange(rows * 3, dtype=np.float32).reshape(1, 1, rows, 3)
    return found


def test_tokens_and_the_logits_that_they_came_from():
    draft = _draft(answer([4, 5], rows=2), SENT, 4)
    assert draft.tokens == (4, 5)
    assert draft.logits.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_engine_that_gives_a_row_for_the_prompt_too_is_understood():
    assert _draft(answer([4], rows=2), SENT, 4).logits.tolist() == [[3, 4, 5]]


def test_nothing_drafted_has_no_logits():
    assert _draft(answer([], rows=1), SENT, 4).logits is None


def test_more_than_was_asked_for_is_cut():
    assert _draft(answer([4, 5, 6]), SENT, 2).tokens == (4, 5)


@pytest.mark.parametrize(
    "wrong", [{}, {"sequence_length": np.zeros((1, 1), np.int32)}, answer([4, 5], rows=1)]
)
def test_nonsense_is_an_error_that_costs_only_the_draft(wrong):
    with pytest.raises((ValueError, LookupError)):
        _draft(wrong, SENT, 4)
