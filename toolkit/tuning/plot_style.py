"""The look that all plots share: colours, bars, axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.measure.prompts import ALL_DOMAINS

NS_PER_MS = 1_000_000
# Okabe and Ito: told apart by colour-blind readers and in grey print; black is all domains.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
FONT = {"family": "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif", "size": 14}


def look(domain: str, domains: Sequence[str]) -> dict[str, Any]:
    """Colour and symbol of a domain, the same in every plot."""
    place = domains.index(domain)
    color = "#111111" if domain == ALL_DOMAINS else PALETTE[place % len(PALETTE)]
    return {
        "line": {"color": color, "width": 2.5 if domain == ALL_DOMAINS else 2},
        "marker": {"color": color, "size": 8, "symbol": SYMBOLS[place % len(SYMBOLS)]},
        "name": domain,
        "legendgroup": domain,
    }


def bars(intervals: Sequence[Any], unit: float) -> dict[str, Any]:
    """Asymmetric error bars; an absent interval has none."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [(i.high - i.value) / unit if i else 0 for i in intervals],
        "arrayminus": [(i.value - i.low) / unit if i else 0 for i in intervals],
        "thickness": 1.2,
        "width": 3,
    }


def milliseconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NS_PER_MS


def dress(figure: Any, height: int) -> Any:
    """The same light look for all, wide enough for a screen and a printed page."""
    figure.update_layout(
        template="plotly_white",
        font=FONT,
        height=height,
        margin={"l": 70, "r": 20, "t": 60, "b": 60},
        legend={"orientation": "h", "y": 1.1, "yanchor": "bottom", "x": 0},
    )
    figure.update_xaxes(showline=True, linecolor="#999", ticks="outside")
    figure.update_yaxes(showline=True, linecolor="#999", ticks="outside")
    return figure
