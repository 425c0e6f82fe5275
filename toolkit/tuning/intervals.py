"""Bootstrap intervals for paired comparisons.

What is resampled are rounds, within each domain (the mix of domains is a choice, not chance), and
then requests within a round: requests of one batch share its step times, so they are not
independent draws. With batch size 1 this is the ordinary bootstrap over prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95
MIN_ROUNDS = 2

Values = Sequence[Sequence[float]]  # one domain: a list of rounds, each with a value per request
Counts = Sequence[tuple[float, float, float, float]]  # per round: see `throughput_gain`


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def above_one(self) -> bool:
        return self.low > 1.0


def quantile_interval(
    domains: Sequence[Values], quantile: float, rng: np.random.Generator
) -> Interval | None:
    """A quantile over all requests; None with fewer than two rounds."""
    domains = [[round for round in domain if round] for domain in domains]
    everything = [value for domain in domains for round in domain for value in round]
    if sum(map(len, domains)) < MIN_ROUNDS:
        return None
    drawn = np.concatenate([_resample(domain, rng) for domain in domains if domain], axis=1)
    low, high = _ends(np.quantile(drawn, quantile, axis=1))
    return Interval(float(np.quantile(everything, quantile)), low, high)


def throughput_gain(domains: Sequence[Counts], rng: np.random.Generator) -> Interval | None:
    """Throughput with over without speculation, from the rounds' (tokens, ns, tokens, ns)."""
    rounds = [np.asarray(domain, dtype=np.float64) for domain in domains if len(domain)]
    if sum(map(len, rounds)) < MIN_ROUNDS:
        return None
    sums = sum(
        counts[rng.integers(len(counts), size=(RESAMPLES, len(counts)))].sum(axis=1)
        for counts in rounds
    )
    low, high = _ends(_gain(np.asarray(sums)))
    total = np.concatenate(rounds).sum(axis=0, keepdims=True)
    return Interval(float(_gain(total)[0]), low, high)


def _gain(sums: NDArray[np.float64]) -> NDArray[np.float64]:  # [R, 4] -> [R]
    gain: NDArray[np.float64] = (sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3])
    return gain


def _resample(domain: Values, rng: np.random.Generator) -> NDArray[np.float64]:
    """[RESAMPLES, rounds * widest round]: rounds with replacement, then requests in each."""
    sizes = np.array([len(round) for round in domain])
    padded = np.zeros((len(domain), sizes.max()))
    for row, round in zip(padded, domain, strict=True):
        row[: len(round)] = round
    rounds = rng.integers(len(domain), size=(RESAMPLES, len(domain)))
    places = rng.random((RESAMPLES, len(domain), sizes.max())) * sizes[rounds][..., None]
    drawn: NDArray[np.float64] = padded[rounds[..., None], places.astype(np.int64)]
    return drawn.reshape(RESAMPLES, -1)


def _ends(estimates: NDArray[np.float64]) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(estimates, [tail, 1 - tail])
    return float(low), float(high)
