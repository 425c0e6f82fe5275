import numpy as np
import pytest

from toolkit.speculation.trace import DraftTrace
from toolkit.tuning.layer_search import Subset, judge, search


def trace(chance, starts=6, depth=3):
    accept = np.full((starts, depth), float(chance))
    for start in range(starts):
        accept[start, starts - start :] = 0.0
    return DraftTrace(accept, np.full(starts, depth))


def test_a_draft_that_always_stands_is_as_long_as_pays():
    cheap = judge((0,), [trace(1.0, starts=60)], cost=0.1, ks=(1, 3))
    assert (cheap.k, cheap.acceptance_length) == (3, 4.0)
    assert cheap.speedup == pytest.approx(4 / 1.3)
    dear = judge((0,), [trace(0.0)], cost=0.5, ks=(1, 3))
    assert (dear.k, dear.speedup) == (1, pytest.approx(1 / 1.5))


def test_the_layer_that_is_missed_least_leaves_first():
    worth = [5.0, 1.0, 3.0, 2.0]
    asked = []

    def score(layers):
        asked.append(layers)
        return Subset(layers, 1, sum(worth[layer] for layer in layers), 0.5, 1.0)

    found = search(4, score)
    assert [subset.layers for subset in found] == [(0, 2, 3), (0, 2), (0,)]
    assert len(asked) == 4 + 3
