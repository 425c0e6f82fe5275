"""The permutation test against enumeration, its false-alarm rate, and what it finds."""

from itertools import combinations

import numpy as np
import pytest

from toolkit.measure.two_sample import Group, compare


def draw(rng, count, probs, length=6):
    return [rng.choice(len(probs), size=length, p=probs).tolist() for _ in range(count)]


def placed(one, other):
    """Squared differences of the share of each token at each place, in plain words."""
    total = 0.0
    for place in range(len(one[0])):
        for token in {text[place] for text in [*one, *other]}:
            share = [sum(t[place] == token for t in side) / len(side) for side in (one, other)]
            seen = sum(t[place] == token for t in [*one, *other])
            total += (share[0] - share[1]) ** 2 if seen > 1 else 0.0
    return total


def test_the_p_value_is_the_share_of_all_deals_that_differ_as_much():
    rng = np.random.default_rng(5)
    one, other = draw(rng, 4, [0.8, 0.2], 3), draw(rng, 4, [0.2, 0.8], 3)
    pool = [*one, *other]
    deals = [
        placed([pool[i] for i in chosen], [t for i, t in enumerate(pool) if i not in chosen])
        for chosen in combinations(range(8), 4)
    ]
    exact = np.mean([deal >= deals[0] - 1e-9 for deal in deals])  # of 70
    found = compare([Group(one, other)], length=3, alpha=0.0004, seed=0)
    assert 0.01 < exact < 0.3
    assert found.p_values["placed"] == pytest.approx(exact, rel=0.5)  # 20 exceedances: +- 22 %


def test_false_alarms_come_as_often_as_stated():
    rng, alarms = np.random.default_rng(1), 0
    for trial in range(400):
        groups = [
            Group(draw(rng, 9, probs), draw(rng, 6, probs))
            for probs in ([0.5, 0.3, 0.2], [0.1, 0.1, 0.8])
        ]
        alarms += compare(groups, length=6, alpha=0.1, seed=trial).differ
    # 40 are expected at most, give or take 6; two tests at half the rate each overlap a little.
    assert 15 <= alarms <= 60


def test_texts_whose_tokens_depend_on_each_other_raise_no_more_false_alarms():
    """One draw of a token fills the whole text: counting tokens would alarm all the time."""
    rng, alarms = np.random.default_rng(2), 0
    for trial in range(200):
        one, other = ([[int(token)] * 6 for token in rng.integers(0, 4, 12)] for _ in range(2))
        alarms += compare([Group(one, other)], length=6, alpha=0.1, seed=trial).differ
    assert alarms <= 35


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param([0.5, 0.3, 0.2], [0.3, 0.3, 0.4], id="another marginal"),
        pytest.param([0.25] * 4, [0.4, 0.3, 0.2, 0.1], id="less than uniform"),
    ],
)
def test_another_distribution_is_found(one, other):
    rng = np.random.default_rng(3)
    found = compare([Group(draw(rng, 80, one), draw(rng, 80, other))], length=6, alpha=1e-3, seed=0)
    assert found.differ


def test_another_successor_is_found_where_every_marginal_is_equal():
    rng = np.random.default_rng(4)

    def walk(stay):
        token, text = int(rng.integers(3)), []
        for _ in range(8):
            text.append(token)
            token = token if rng.random() < stay else int(rng.integers(3))
        return text

    one, other = [walk(0.0) for _ in range(80)], [walk(0.4) for _ in range(80)]
    found = compare([Group(one, other)], length=8, alpha=1e-3, seed=0)
    assert found.p_values["successive"] <= 5e-4
    assert found.p_values["placed"] > 0.01


def test_other_lengths_are_found():
    texts = [[1, 2, 3, 4], [1, 2]]
    one, other = [texts[i % 4 == 0] for i in range(60)], [texts[i % 4 != 0] for i in range(60)]
    assert compare([Group(one, other)], length=4, alpha=1e-3, seed=0).differ


def test_equal_texts_do_not_differ():
    group = Group([[1, 2]] * 5, [[1, 2]] * 5)
    assert compare([group], length=2, alpha=0.05, seed=0).p_value == 1.0


@pytest.mark.parametrize("count", [3, 5, 7, 11, 48])
def test_equal_texts_do_not_differ_for_any_numbers_of_them(count):
    # Sums of thirds and fifths cancel but for rounding, which differs from machine to machine.
    group = Group([[1, 2]] * count, [[1, 2]] * (count + 2))
    for groups in ([group], [group] * 9):
        assert compare(groups, length=2, alpha=1e-3, seed=0).p_value == 1.0
