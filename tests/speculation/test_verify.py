"""The output distribution of a verify step, enumerated exactly.

Probabilities are fractions with small denominators, so the outcome of a step is constant on every
cell of a grid over its uniforms: averaging over the cells' midpoints is the integral, not a sample.
"""

from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest

from toolkit.speculation.verify import residual, verify, verify_greedy

F = Fraction
# Thresholds are p/q and cumulated residuals: with denominators up to 4 they are multiples of 1/12.
CELLS = 12
MIDPOINTS = [(2 * i + 1) / (2 * CELLS) for i in range(CELLS)]


def fractions(*quarters):
    return [F(n, 4) for n in quarters]


def rows(first, count):
    """A distribution for each position (the first, turned), so that mixing them up shows."""
    return [first[-i % 3 :] + first[: -i % 3] for i in range(count)]


def exact_output(target, draft, draft_len):
    """The distribution of the first draft_len + 1 tokens of a vocabulary of three.

    `draft` None stands for a lookup that always drafts token 0. Positions that the step did not
    emit are filled in from the target itself, as later steps would.
    """
    target, draft = rows(target, draft_len + 1), rows(draft, draft_len) if draft else None
    target_probs = np.array(target, dtype=float)
    draft_probs = np.array(draft, dtype=float).reshape(draft_len, 3) if draft is not None else None
    result = dict.fromkeys(product(range(3), repeat=draft_len + 1), F(0))
    for drafted in product(range(3), repeat=draft_len) if draft else [(0,) * draft_len]:
        chance = chance_of(drafted, draft) if draft else F(1)
        for *accept, emit in product(MIDPOINTS if chance else [], repeat=draft_len + 1):
            emits = [emit] * (draft_len + 1)
            tokens, accepted = verify(drafted, draft_probs, target_probs, accept, emits)
            assert len(tokens) == accepted + 1
            for rest in product(range(3), repeat=draft_len + 1 - len(tokens)):
                weight = chance * chance_of(rest, target[len(tokens) :])
                result[(*tokens, *rest)] += weight / CELLS ** (draft_len + 1)
    return result


def chance_of(tokens, probs):
    return prod([row[token] for token, row in zip(tokens, probs, strict=True)], start=F(1))


PAIRS = {
    "different": (fractions(2, 1, 1), fractions(1, 1, 2)),
    "equal": (fractions(2, 1, 1), fractions(2, 1, 1)),
    "draft with zeros": (fractions(2, 1, 1), fractions(0, 4, 0)),
    "target with zeros": (fractions(0, 3, 1), fractions(2, 1, 1)),
    "disjoint": (fractions(0, 3, 1), fractions(4, 0, 0)),
    "sure target": (fractions(0, 4, 0), fractions(1, 1, 2)),
    "lookup": (fractions(1, 1, 2), None),
    "lookup of an impossible token": (fractions(0, 1, 3), None),
    "lookup of a certain token": (fractions(4, 0, 0), None),
}


@pytest.mark.parametrize("draft_len", [0, 1, 2])
@pytest.mark.parametrize(("target", "draft"), PAIRS.values(), ids=PAIRS.keys())
def test_the_output_has_exactly_the_targets_distribution(target, draft, draft_len):
    for text, chance in exact_output(target, draft, draft_len).items():
        assert chance == chance_of(text, rows(target, draft_len + 1)), text


def test_the_enumeration_would_notice_a_wrong_rule(monkeypatch):
    # Recovering from the target instead of the residual favours what the draft proposes.
    monkeypatch.setattr("toolkit.speculation.verify.residual", lambda target, draft: target)
    target, draft = PAIRS["different"]
    result = exact_output(target, draft, 1)
    assert any(result[text] != chance_of(text, rows(target, 2)) for text in result)


def test_a_draft_token_of_probability_zero_is_refused_even_by_u_zero():
    target = np.array([[0.0, 1.0], [0.5, 0.5]])
    assert verify([0], np.array([[1.0, 0.0]]), target, [0.0], [0.0, 0.0]) == ([1], 0)
    assert verify([0], None, target, [0.0], [0.0, 0.0]) == ([1], 0)


def test_recovered_token_comes_from_the_residual():
    # p - q = (0.4, 0, -0.4): only token 0 can recover, whatever the uniform.
    target, draft = np.array([[0.6, 0.3, 0.1]] * 2), np.array([[0.2, 0.3, 0.5]])
    for emit in (0.0, 0.5, 0.999):
        assert verify([2], draft, target, [0.9], [emit, emit]) == ([0], 0)


def test_bonus_token_comes_from_the_last_row():
    target = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert verify([0], np.array([[1.0, 0.0]]), target, [0.5], [0.5, 0.5]) == ([0, 1], 1)


def test_a_residual_lost_to_rounding_falls_back_on_the_target():
    row = np.array([0.1, 0.9])
    np.testing.assert_array_equal(residual(row, row), row)


@pytest.mark.parametrize(
    ("drafted", "emitted", "accepted"),
    [
        ([], [5], 0),
        ([5], [5, 6], 1),
        ([4], [5], 0),
        ([5, 6, 7], [5, 6, 7, 8], 3),
        ([5, 9, 7], [5, 6], 1),
    ],
)
def test_greedy_keeps_what_the_target_would_have_chosen(drafted, emitted, accepted):
    assert verify_greedy(drafted, [5, 6, 7, 8][: len(drafted) + 1]) == (emitted, accepted)
