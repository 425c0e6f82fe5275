"""Which of a target's layers draft best for it: a search over traces, without generating.

Each layer is left out by itself first; what that costs in acceptance says how much it matters.
Then subsets are tried from the whole model down, the least important layer leaving next. That is
2 L readings of the same texts for L layers, where a search over all subsets would take 2^L.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.measure.trace_rounds import add, expected_rounds
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.trace import DraftTrace

Layers = tuple[int, ...]


@dataclass(frozen=True)
class Subset:
    """Some layers as a draft, at the draft length that suits them best."""

    layers: Layers
    k: int
    acceptance_length: float
    cost: float  # of one drafted token, in steps of the target
    speedup: float  # predicted: tokens of a step over what the step costs


def judge(
    layers: Layers,
    traces: Sequence[DraftTrace],
    cost: float,
    ks: Sequence[int],
    *,
    verify: float = 0.0,  # what each more token costs the target, in steps of its own
) -> Subset:
    """The best draft length: acceptance_length / (1 + k (cost + verify))."""
    best: Subset | None = None
    for k in ks:
        length = add([expected_rounds(trace, Fixed(k)) for trace in traces]).acceptance_length
        found = Subset(layers, k, length, cost, length / (1 + k * (cost + verify)))
        if best is None or found.speedup > best.speedup:
            best = found
    if best is None:
        raise ValueError("no draft length to judge by")
    return best


def search(
    count: int,
    score: Callable[[Layers], Subset],
    advance: Callable[[float], None] = lambda subsets: None,
) -> list[Subset]:
    """The nested subsets of a model of `count` layers, the largest first; `score` is asked for
    2 count - 2 of them."""
    whole = tuple(range(count))
    matters: NDArray[np.float64] = np.zeros(count)
    for layer in whole:
        matters[layer] = -score(_without(whole, {layer})).acceptance_length
        advance(1)
    # The one that is missed least leaves first.
    order = np.argsort(matters, kind="stable").tolist()
    found = []
    for dropped in range(1, count):
        found.append(score(_without(whole, set(order[:dropped]))))
        advance(1)
    return found


def _without(layers: Layers, dropped: set[int]) -> Layers:
    return tuple(layer for layer in layers if layer not in dropped)
