"""Rotary position embeddings: inverse frequencies by scaling type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class RopeError(ValueError):
    """A scaling that this table does not have, or one with a value missing."""


def _unscaled(inv_freq: NDArray[np.float64], scaling: Mapping[str, Any]) -> NDArray[np.float64]:
    return inv_freq


def _linear(inv_freq: NDArray[np.float64], scaling: Mapping[str, Any]) -> NDArray[np.float64]:
    return inv_freq / float(scaling["factor"])


def _llama3(inv_freq: NDArray[np.float64], scaling: Mapping[str, Any]) -> NDArray[np.float64]:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    trained = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / inv_freq
    share = np.clip((trained / wavelength - low) / (high - low), 0.0, 1.0)  # 0: stretched, 1: kept
    return (1 - share) * inv_freq / factor + share * inv_freq


SCALINGS: dict[str, Callable[[NDArray[np.float64], Mapping[str, Any]], NDArray[np.float64]]] = {
    "default": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
}


def inverse_frequencies(
    head_size: int, base: float, scaling: Mapping[str, Any] | None
) -> NDArray[np.float64]:  # [head_size / 2]
    """Angle per position of each pair of dimensions."""
    inv_freq = base ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    scaling = scaling or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in SCALINGS:
        raise RopeError(f"type {kind!r} is not supported (known: {', '.join(SCALINGS)})")
    try:
        return SCALINGS[kind](inv_freq, scaling)
    except KeyError as error:
        raise RopeError(f"type {kind!r} needs {error.args[0]!r}") from None
