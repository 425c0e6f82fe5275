"""Acceptance from a table of matches, by hand and against a loop that is played through."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.training.acceptance import acceptance


def table(*rows: str) -> np.ndarray:
    return np.array([[c == "1" for c in row] for row in rows])


def test_by_hand():
    # Starts:      0 1 2 3 4
    # depth 0:     1 0 1 1 0
    # depth 1 (a token that stands one behind its start):
    #              . 1 0 1 0
    found = acceptance([(table("10110", "01010"), 5)], 2)
    # depth 0 of all five starts: three stand. Depth 1 is reached by starts 0, 2, 3 (all have a row
    # behind them): start 0 -> row 1 stands, start 2 -> row 3 stands, start 3 -> row 4 does not.
    assert (found.reached, found.accepted) == ((5, 3), (3, 2))
    assert found.conditional == [3 / 5, 2 / 3]
    # The loop: start 0 accepts 2 and emits 3; start 3 accepts 1 and emits the last one.
    assert (found.tokens, found.steps) == (5, 2)
    assert found.acceptance_length == 2.5


def test_padding_is_not_counted():
    padded = np.concatenate([table("10", "01"), np.ones((2, 3), bool)], 1)
    assert acceptance([(padded, 2)], 2) == acceptance([(table("10", "01"), 2)], 2)


@pytest.mark.parametrize("seed", range(5))
def test_against_a_loop_that_is_played_through(seed):
    rng = np.random.default_rng(seed)
    matches = rng.random((3, 40)) < 0.6
    at = steps = 0
    while at < 40:
        steps += 1
        for depth in range(3):
            if at >= 40 or not matches[depth, at]:
                break
            at += 1
        at += 1  # what the target says itself
    found = acceptance([(matches, 40)], 3)
    assert found.steps == steps
    assert found.tokens == 40


def test_nothing_to_count():
    found = acceptance([], 2)
    assert (found.acceptance_length, found.conditional) == (0.0, [0.0, 0.0])
