"""From logits to a token: the filtered distribution, counter-based uniforms, the inverse CDF.

A uniform is a pure function of (seed, position, role). An output position uses each of its
uniforms once, so the text is exact in distribution, and it is the same alone or in a batch, in one
process or in two, before or after a restart. What a policy decides may depend on what was emitted
and accepted, never on draft tokens that were thrown away: their uniforms are used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b
from math import isfinite
from struct import pack
from typing import overload

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import RunError
from toolkit.speculation.interfaces import SamplingParams

Floats = NDArray[np.float64]
Logits = NDArray[np.float32] | NDArray[np.float64]


class Role(IntEnum):
    """What a uniform decides at its position."""

    ACCEPT = 0  # whether the draft token stands
    EMIT = 1  # the recovered, bonus or plain token
    DRAFT = 2  # the draft token


def uniform(seed: int, position: int, role: Role, sibling: int = 0) -> float:
    """A number in [0, 1) for the token at absolute `position` (prompt included).

    Several tokens that a tree has for one position are told apart by `sibling`: their place among
    the children of one node. Cousins share their numbers, for at most one of them is looked at.
    """
    decides = role + len(Role) * sibling
    key = blake2b(pack("<QQQ", seed, position, decides), digest_size=8).digest()
    return (int.from_bytes(key, "little") >> 11) * 2.0**-53


def uniforms(seed: int, position: int, count: int, role: Role) -> list[float]:
    """The numbers of `count` positions from `position` on."""
    return [uniform(seed, position + i, role) for i in range(count)]


def most_likely(
    logits: Logits,  # [R, V]
) -> list[int]:  # [R], the first of equals
    """The greedy choice of every row."""
    tokens = logits.argmax(axis=1)
    _require_finite(logits[np.arange(len(tokens)), tokens].sum())
    return [int(token) for token in tokens]


def probabilities(
    logits: Logits,  # [R, V]
    params: SamplingParams,
) -> Floats:  # [R, V], every row sums to 1
    """The distributions after temperature, then top-k, then top-p."""
    return np.stack([distribution(row, params) for row in logits])


class LazyProbabilities(Sequence[Floats]):
    """`probabilities`, row by row as they are looked at: behind a refused token nobody looks."""

    def __init__(self, logits: Logits, params: SamplingParams) -> None:
        self._logits, self._params = logits, params

    def __len__(self) -> int:
        return len(self._logits)

    @overload
    def __getitem__(self, at: int) -> Floats: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Floats]: ...

    def __getitem__(self, at: int | slice) -> Floats | Sequence[Floats]:
        if isinstance(at, slice):
            return LazyProbabilities(self._logits[at], self._params)
        return distribution(self._logits[at], self._params)


def distribution(
    logits: Logits,  # [V]
    params: SamplingParams,  # temperature above 0
) -> Floats:  # [V]
    """One row of `probabilities`."""
    probs: Floats = logits.astype(np.float64)
    highest = float(probs.max())
    _require_finite(highest)
    probs -= highest
    probs /= params.temperature
    np.exp(probs, out=probs)
    if 0 < params.top_k < len(logits):
        # Tokens that tie with the k-th one stay: the rule must not depend on their order.
        probs[logits < np.partition(logits, -params.top_k)[-params.top_k]] = 0.0
    probs /= probs.sum()
    return _nucleus(probs, params.top_p) if params.top_p < 1.0 else probs


def likeliest(
    logits: Logits,  # [V]
    count: int,
) -> NDArray[np.int64]:  # [count] by falling logit, the first of equals first
    """The tokens with the largest logits."""
    count = min(count, len(logits))
    least = np.partition(logits, -count)[-count]
    # Of those that tie for the last places argpartition would take any.
    above, ties = np.flatnonzero(logits > least), np.flatnonzero(logits == least)
    order = above[np.argsort(-logits[above], kind="stable")]
    return np.concatenate([order, ties[: count - len(order)]])


def ranks(
    logits: Logits,  # [R, V]
    tokens: NDArray[np.int64],  # [R]
) -> NDArray[np.int64]:  # [R]
    """The place of each row's token in `likeliest`."""
    own = logits[np.arange(len(tokens)), tokens][:, None]
    earlier = np.arange(logits.shape[1]) < tokens[:, None]
    found: NDArray[np.int64] = ((logits > own) | ((logits == own) & earlier)).sum(axis=1)
    return found


def confidence(
    logits: Logits,  # [V]
) -> float:
    """The probability of the likeliest token, at temperature 1 and whatever the request's is."""
    highest = float(logits.max())
    _require_finite(highest)
    return float(1.0 / np.exp(logits - highest, dtype=np.float64).sum())


def _nucleus(probs: Floats, top_p: float) -> Floats:
    """The fewest most probable tokens that together reach `top_p`, and those that tie with them."""
    # All tokens below this bound together stay below 1 - top_p, so that none of them is kept.
    candidates = probs[probs >= (1.0 - top_p) / len(probs)]
    descending = -np.sort(-candidates)
    before = np.cumsum(descending) - descending
    probs[probs < descending[np.count_nonzero(before < top_p) - 1]] = 0.0
    probs /= probs.sum()
    return probs


def _require_finite(highest: float) -> None:
    """The largest of a row is nan or inf exactly when the row has nan or +inf in it."""
    if not isfinite(highest):
        raise RunError(
            "the model's logits are not finite; use a wider dtype (bfloat16 or float32) or "
            "check the converted weights"
        )


def draw(
    weights: Floats,  # [V], at least one above zero; need not sum to 1
    u: float,  # in [0, 1)
) -> int:
    """The inverse CDF of one uniform; a token of weight zero never comes out."""
    cumulative = weights.cumsum()
    # The first index whose sum is strictly above u * total has a positive weight of its own.
    token = int(cumulative.searchsorted(u * cumulative[-1], side="right"))
    if token < len(weights):
        return token
    return int(np.flatnonzero(weights)[-1])  # u * total was rounded up to total
