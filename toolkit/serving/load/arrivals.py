"""When a load sends its requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Closed:
    """So many clients, each sending its next request when the last one is answered."""

    clients: int

    def __str__(self) -> str:
        return f"closed loop, {self.clients} client{'s' if self.clients > 1 else ''}"


@dataclass(frozen=True)
class Poisson:
    """Open loop: requests come at random, whether or not earlier ones are answered."""

    rate: float  # requests per second
    seed: int = 0

    def __str__(self) -> str:
        return f"open loop, {self.rate:.3g} requests/s (Poisson)"

    def times(self) -> Iterator[float]:
        """Seconds after the start, without end: gaps are exponential."""
        rng = Random(self.seed)
        now = 0.0
        while True:
            now += rng.expovariate(self.rate)
            yield now


Arrivals = Closed | Poisson


@dataclass(frozen=True)
class Until:
    """A load ends after so many requests or seconds, whichever comes first; then it drains."""

    requests: int | None = None
    seconds: float | None = None
