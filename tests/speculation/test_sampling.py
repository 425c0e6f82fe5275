import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, pearsonr

from toolkit.errors import RunError
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.sampling import (
    LazyProbabilities,
    Role,
    draw,
    likeliest,
    most_likely,
    probabilities,
    ranks,
    uniform,
    uniforms,
)

# Softmax of these logits is (8, 4, 2, 1, 1) / 16.
LOGITS = np.log([[8.0, 4.0, 2.0, 1.0, 1.0]])
WEIGHTS = st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 0.25, 1.0, 3.0]), min_size=1, max_size=8)
BELOW_ONE = 1.0 - 2.0**-53


def rows(**params):
    return probabilities(LOGITS, SamplingParams(**{"temperature": 1.0, **params}))[0]


def test_temperature_divides_the_logits():
    # Temperature 1/2 squares the weights: 64, 16, 4, 1, 1 of 86.
    np.testing.assert_allclose(rows(temperature=0.5), np.array([64, 16, 4, 1, 1]) / 86)


def test_top_k_keeps_the_k_most_probable_tokens():
    np.testing.assert_allclose(rows(top_k=2), [2 / 3, 1 / 3, 0, 0, 0])


def test_top_k_keeps_tokens_that_tie_with_the_last_one():
    np.testing.assert_allclose(rows(top_k=4), np.array([8, 4, 2, 1, 1]) / 16)


@pytest.mark.parametrize("top_k", [0, 5, 6])
def test_top_k_without_effect(top_k):
    np.testing.assert_allclose(rows(top_k=top_k), np.array([8, 4, 2, 1, 1]) / 16)


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (1e-9, [1, 0, 0, 0, 0]),  # always the most probable token
        (0.49, [1, 0, 0, 0, 0]),  # 8/16 reaches it
        (0.51, [2 / 3, 1 / 3, 0, 0, 0]),
        (0.8, np.array([8, 4, 2, 0, 0]) / 14),  # 12/16 = 0.75 does not reach it
        (0.9, np.array([8, 4, 2, 1, 1]) / 16),  # a tie stays whole
    ],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p, kept):
    np.testing.assert_allclose(rows(top_p=top_p), kept)


def test_top_p_is_measured_after_temperature_and_top_k():
    # Of 8, 4, 2 the first two have 12/14 = 0.857; of all five only 0.75.
    np.testing.assert_allclose(rows(top_k=3, top_p=0.8), [2 / 3, 1 / 3, 0, 0, 0])
    # Temperature 1/2: 64/86 = 0.74 is enough for 0.7 on its own.
    np.testing.assert_allclose(rows(temperature=0.5, top_p=0.7), [1, 0, 0, 0, 0])


def test_rows_are_filtered_each_on_its_own():
    two = probabilities(np.vstack([LOGITS, LOGITS[:, ::-1]]), SamplingParams(1.0, top_k=1))
    np.testing.assert_allclose(two, [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]])


def test_lazy_rows_are_the_same_rows():
    logits = np.random.default_rng(0).normal(0, 3, (4, 1000)).astype(np.float32)
    for params in (SamplingParams(0.8), SamplingParams(1.0, 50, 0.9)):
        lazy, eager = LazyProbabilities(logits, params), probabilities(logits, params)
        np.testing.assert_array_equal(np.stack(list(lazy)), eager)
        np.testing.assert_array_equal(lazy[-1], eager[-1])
        np.testing.assert_array_equal(np.stack(lazy[1:3]), eager[1:3])


@given(st.integers(0, 2**32), st.floats(0.1, 20.0), st.floats(0.01, 0.999))
def test_the_nucleus_is_the_shortest_head_of_the_sorted_tokens(seed, spread, top_p):
    logits = np.random.default_rng(seed).normal(0, spread, 50)
    full = np.exp(logits) / np.exp(logits).sum()
    order = np.argsort(-full)
    reached = np.cumsum(full[order])
    head = order[: np.searchsorted(reached, top_p) + 1]
    kept = np.flatnonzero(probabilities(logits[None], SamplingParams(1.0, top_p=top_p))[0])
    assert set(kept) == set(head)


def test_the_logits_are_left_as_they_were():
    logits = LOGITS.copy()
    probabilities(logits, SamplingParams(0.5, 2, 0.5))
    np.testing.assert_array_equal(logits, LOGITS)


def test_huge_logits_do_not_overflow():
    np.testing.assert_allclose(
        probabilities(np.array([[1e5, 0.0]]), SamplingParams(0.01)), [[1, 0]]
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error_and_not_a_token(bad):
    logits = np.array([[0.0, 1.0], [0.0, bad]], dtype=np.float32)
    with pytest.raises(RunError, match="not finite"):
        most_likely(logits)
    with pytest.raises(RunError, match="not finite"):
        probabilities(logits, SamplingParams(1.0))


def test_a_masked_token_may_have_minus_infinity():
    logits = np.array([[0.0, -np.inf, 0.0]])
    assert most_likely(logits) == [0]
    np.testing.assert_allclose(probabilities(logits, SamplingParams(1.0)), [[0.5, 0, 0.5]])


@given(WEIGHTS.filter(any), st.floats(0.0, BELOW_ONE))
def test_a_token_of_weight_zero_is_never_drawn(weights, u):
    assert weights[draw(np.array(weights), u)] > 0


@pytest.mark.parametrize(
    ("u", "token"), [(0.0, 1), (0.24, 1), (0.25, 3), (0.74, 3), (0.75, 4), (BELOW_ONE, 4)]
)
def test_draw_is_the_inverse_cdf(u, token):
    assert draw(np.array([0.0, 1.0, 0.0, 2.0, 1.0, 0.0]), u) == token


def test_uniforms_are_uniform():
    sample = np.array(uniforms(7, 0, 20_000, Role.EMIT))
    assert sample.min() >= 0.0
    assert sample.max() < 1.0
    assert chisquare(np.histogram(sample, bins=50, range=(0, 1))[0]).pvalue > 0.001


@pytest.mark.parametrize(
    "others",
    [
        uniforms(7, 0, 5000, Role.ACCEPT),
        uniforms(7, 1, 5000, Role.EMIT),
        uniforms(8, 0, 5000, Role.EMIT),
        [uniform(seed, 0, Role.EMIT) for seed in range(5000)],
    ],
    ids=["another role", "another position", "another seed", "over seeds"],
)
def test_uniforms_with_another_key_are_unrelated(others):
    assert pearsonr(uniforms(7, 0, 5000, Role.EMIT), others).pvalue > 0.001


def test_the_largest_seed_and_position_work():
    assert 0.0 <= uniform(2**63 - 1, 2**31, Role.DRAFT) < 1.0


@given(
    st.lists(st.sampled_from([-np.inf, 0.0, 1.0, 2.0]), min_size=1, max_size=9), st.integers(1, 9)
)
def test_the_likeliest_come_in_order_and_of_equals_the_first(row, count):
    logits = np.array(row, np.float32)
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    assert likeliest(logits, count).tolist() == order[:count]
    every = np.arange(len(row))
    places = ranks(np.tile(logits, (len(row), 1)), every)
    assert [order.index(token) for token in every] == places.tolist()
