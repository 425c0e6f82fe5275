"""The most load that a deployment carries while TPOT stays under a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from toolkit.serving.load.arrivals import Arrivals, Closed, Poisson
from toolkit.serving.load.figures import Figures

# The part of the sending time that the last answers may take after the last request: beyond, the
# queue grew while requests came.
_BEHIND = 0.1


@dataclass(frozen=True)
class Limit:
    """What a deployment must hold."""

    tpot_ms: float
    percentile: float = 99.0

    def broken(self, arrivals: Arrivals, found: Figures) -> str | None:
        """Why this load is too much, in words; None when it is not."""
        tpot = found.tpot_ms[self.percentile]
        if found.error_rate or found.refusal_rate:
            return f"{found.error_rate + found.refusal_rate:.1%} of the requests were not served"
        if not tpot <= self.tpot_ms:
            return f"TPOT p{self.percentile:g} {tpot:.1f} ms"
        left_s = found.wall_s - found.sending_s
        usual_s = found.e2e_ms[50.0] / 1000
        if isinstance(arrivals, Poisson) and left_s > 2 * usual_s + _BEHIND * found.sending_s:
            return f"{left_s:.1f} s behind after {found.sending_s:.1f} s of requests"
        return None


@dataclass(frozen=True)
class Tried:
    """One load of a search, and what broke under it (None: nothing)."""

    load: float  # clients, or requests per second
    figures: Figures
    broken: str | None


def closed(load: float) -> Closed:
    return Closed(round(load))


def poisson(load: float) -> Poisson:
    return Poisson(load)


async def search(
    measure: Callable[[Arrivals], Awaitable[Figures]],
    arrivals: Callable[[float], Arrivals],  # `closed` or `poisson`
    limit: Limit,
    *,
    start: float,
    most: float,
    tolerance: float = 0.1,
) -> list[Tried]:
    """Loads in the order they were tried: doubled until one is too much, then halved in between."""
    tried: list[Tried] = []

    async def holds(load: float) -> bool:
        shape = arrivals(load)
        found = await measure(shape)
        tried.append(Tried(load, found, limit.broken(shape, found)))
        return tried[-1].broken is None

    whole = isinstance(arrivals(start), Closed)
    low, high = 0.0, start
    while await holds(high):
        if high >= most:
            return tried
        low, high = high, min(2 * high, most)
    while high - low > max(tolerance * high, 1 if whole else 0):
        middle = round((low + high) / 2) if whole else (low + high) / 2
        if middle < start / 64:
            break  # not even a trickle holds
        if await holds(middle):
            low = middle
        else:
            high = middle
    return tried


def best(tried: list[Tried]) -> Tried | None:
    """The highest load that held; None when none did."""
    return max((t for t in tried if t.broken is None), key=lambda t: t.load, default=None)
