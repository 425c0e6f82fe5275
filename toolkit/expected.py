"""How long a step is likely to take, so that the longest way can go first.

From what the store's manifests say of like artefacts; without any, from the size of the weights.
Nothing but the order of steps depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

from toolkit.plan import Artefact
from toolkit.steps import weights

# Seconds to begin with and bytes of weights a second: orders of magnitude, replaced by the first
# artefact of the kind that a store has.
_GUESS = {"tokenizers": (1.0, 1e12), "checkpoints": (5.0, 300e6), "engines": (30.0, 100e6)}
_UNKNOWN_BYTES = 16e9  # of a model that is not here yet


def expectation(entries: Iterable[Mapping[str, Any]]) -> Callable[[Artefact], float]:
    """Artefact -> seconds, from manifests as `Store.entries` gives them."""
    like: dict[tuple[str, str], list[float]] = {}
    rates: dict[str, list[float]] = {}  # seconds a byte of what came out
    for entry in entries:
        seconds, size = float(entry.get("seconds", 0)), float(entry.get("bytes", 0))
        like.setdefault(_kin(entry["kind"], entry["spec"]), []).append(seconds)
        if size:
            rates.setdefault(entry["kind"], []).append(seconds / size)

    def seconds_of(artefact: Artefact) -> float:
        if found := like.get(_kin(artefact.kind, artefact.spec or {})):
            return median(found)
        size = weights(artefact.model)[0] or _UNKNOWN_BYTES
        if artefact.kind in rates:
            return median(rates[artefact.kind]) * size
        start, rate = _GUESS[artefact.kind]
        return start + size / rate

    return seconds_of


def _kin(kind: str, spec: Mapping[str, Any]) -> tuple[str, str]:
    """Artefacts with the same input take about as long, whatever their sizes and flags."""
    return kind, str(spec.get("checkpoint") or spec.get("source"))
