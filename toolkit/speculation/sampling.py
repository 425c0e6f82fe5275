"""From logits to a token: the filtered distribution, counter-based uniforms, the inverse CDF.

A uniform is a pure function of (seed, position, role). An output position uses each of its
uniforms once, so the text is exact in distribution, and it is the same alone or in a batch, in one
process or in two, before or after a restart. What a policy decides may depend on what was emitted
and accepted, never on draft tokens that were thrown away: their uniforms are used again.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from struct import pack

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


def uniform(seed: int, position: int, role: Role) -> float:
    """A number in [0, 1) for the token at absolute `position` (prompt included)."""
    key = blake2b(pack("<QQQ", seed, position, role), digest_size=8).digest()
    return (int.from_bytes(key, "little") >> 11) * 2.0**-53


def uniforms(seed: int, position: int, count: int, role: Role) -> list[float]:
    """The numbers of `count` positions from `position` on."""
    return [uniform(seed, position + i, role) for i in range(count)]


def most_likely(
    logits: Logits,  # [R, V]
) -> list[int]:  # [R], the first of equals
    """The greedy choice of every row."""
    tokens = logits.argmax(axis=1)
    _require_finite(logits[np.arange(len(tokens)), tokens])
    return [int(token) for token in tokens]


def probabilities(
    logits: Logits,  # [R, V]
    params: SamplingParams,
) -> Floats:  # [R, V], every row sums to 1
    """The distributions after temperature (above 0), then top-k, then top-p."""
    scaled = np.asarray(logits, dtype=np.float64)
    highest = scaled.max(axis=1, keepdims=True)
    _require_finite(highest)
    scaled = (scaled - highest) / params.temperature
    if 0 < params.top_k < scaled.shape[1]:
        # Tokens that tie with the k-th one stay: the rule must not depend on their order.
        smallest_kept = np.sort(scaled, axis=1)[:, -params.top_k, None]
        scaled = np.where(scaled >= smallest_kept, scaled, -np.inf)
    probs: Floats = np.exp(scaled)
    probs /= probs.sum(axis=1, keepdims=True)
    return _nucleus(probs, params.top_p) if params.top_p < 1.0 else probs


def _nucleus(probs: Floats, top_p: float) -> Floats:
    """The fewest most probable tokens that together reach `top_p`, and those that tie with them."""
    descending = -np.sort(-probs, axis=1)
    before = np.cumsum(descending, axis=1) - descending
    kept = np.count_nonzero(before < top_p, axis=1)
    smallest_kept = np.take_along_axis(descending, kept[:, None] - 1, axis=1)
    probs = np.where(probs >= smallest_kept, probs, 0.0)
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def _require_finite(highest: Floats | Logits) -> None:
    """The largest of a row is nan or inf exactly when the row has nan or +inf in it."""
    if not np.isfinite(highest).all():
        raise RunError(
            "the model's logits are not finite; use a wider dtype (bfloat16 or float32) or "
            "check the converted weights"
        )


def draw(
    weights: Floats,  # [V], at least one above zero; need not sum to 1
    u: float,  # in [0, 1)
) -> int:
    """The inverse CDF of one uniform; a token of weight zero never comes out."""
    cumulative = np.cumsum(weights)
    # The first index whose sum is strictly above u * total has a positive weight of its own.
    token = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    if token < len(weights):
        return token
    return int(np.flatnonzero(weights)[-1])  # u * total was rounded up to total
