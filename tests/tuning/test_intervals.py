"""Bootstrap intervals: exact where nothing varies, honest where something does."""

import numpy as np
import pytest

from toolkit.tuning.intervals import quantile_interval, throughput_gain


def rng():
    return np.random.default_rng(0)


def test_equal_values_have_an_interval_of_no_width():
    found = quantile_interval([[[2.0], [2.0], [2.0]]], 0.5, rng())
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
    assert found.above_one


def test_the_mix_of_domains_is_not_left_to_chance():
    # Four rounds at 1 and four at 3: every resample keeps four of each, so the median is always 2.
    found = quantile_interval([[[1.0]] * 4, [[3.0]] * 4], 0.5, rng())
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


def test_one_round_gives_no_interval():
    assert quantile_interval([[[1.0, 2.0, 3.0]]], 0.5, rng()) is None
    assert quantile_interval([[[1.0], []], []], 0.5, rng()) is None
    assert throughput_gain([[(1, 1, 1, 1)]], rng()) is None


def test_requests_of_one_round_do_not_pass_for_independent_rounds():
    # The same sixteen ratios as sixteen rounds of one, and as two rounds of eight that each share
    # the luck of their machine: the second knows less.
    values = [0.9] * 8 + [1.3] * 8
    alone = quantile_interval([[[value] for value in values]], 0.5, rng())
    grouped = quantile_interval([[values[:8], values[8:]]], 0.5, rng())
    assert alone.value == grouped.value
    assert (grouped.low, grouped.high) == (0.9, 1.3)
    assert grouped.high - grouped.low >= alone.high - alone.low


def test_rounds_may_differ_in_size():
    found = quantile_interval([[[1.0, 1.0, 1.0], [3.0]]], 0.5, rng())
    assert found.value == 1.0
    assert (found.low, found.high) == (1.0, 3.0)


@pytest.mark.parametrize("rounds", [12, 24])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(rounds):
    draws = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        found = quantile_interval([[[v] for v in draws.normal(1.5, 0.3, rounds)]], 0.5, draws)
        hits += found.low <= 1.5 <= found.high
    assert 0.89 <= hits / 200 <= 0.99


def test_throughput_gain_is_the_ratio_of_the_sums():
    # 30 + 10 tokens in 10 + 10 ns against 10 + 10 in 10 + 10: 2 against 1.
    found = throughput_gain([[(30, 10, 10, 10), (10, 10, 10, 10)]], rng())
    assert found.value == 2.0
    # Resamples: both rounds the first (3), both the second (1), or one of each (2).
    assert (found.low, found.high) == (1.0, 3.0)
