"""The whole surface at a glance: TPOT by draft length and batch size, one map per domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.optional import require
from toolkit.tuning.plot_style import dress, milliseconds
from toolkit.tuning.summary import Cell

# Blue pays, red costs; white is plain decoding. Told apart by colour-blind readers.
COLORS = [[0.0, "#B2182B"], [0.5, "#FFFFFF"], [1.0, "#2166AC"]]
COLUMNS = 2


def surface(cells: Sequence[Cell]) -> Any:
    """Colour: plain TPOT of the same batch size over TPOT. Text: TPOT p50 in ms."""
    subplots = require("plotly.subplots", extra="report", why="report.html")
    domains = list(dict.fromkeys(cell.domain for cell in cells))
    columns = min(COLUMNS, len(domains))
    lines = -(-len(domains) // columns)
    figure = subplots.make_subplots(
        rows=lines,
        cols=columns,
        subplot_titles=domains,
        horizontal_spacing=0.09,
        vertical_spacing=0.35 / lines,
    )
    batches = sorted({cell.batch_size for cell in cells})
    ks = sorted({cell.k for cell in cells})
    for place, domain in enumerate(domains):
        here = {(c.batch_size, c.k): c.tpot_p50_ns for c in cells if c.domain == domain}
        figure.add_heatmap(
            x=["plain" if k == 0 else str(k) for k in ks],
            y=[str(batch) for batch in batches],
            z=[[_gain(here, batch, k) for k in ks] for batch in batches],
            text=[[_text(here.get((batch, k))) for k in ks] for batch in batches],
            texttemplate="%{text}",
            hovertemplate="batch %{y}, k = %{x}: %{text} ms, %{z:.2f}x<extra></extra>",
            coloraxis="coloraxis",
            row=place // columns + 1,
            col=place % columns + 1,
        )
    figure.update_xaxes(type="category")
    figure.update_xaxes(title="draft length k", row=lines)
    figure.update_yaxes(type="category")
    figure.update_yaxes(title="batch size", col=1)
    figure.update_layout(
        coloraxis={
            "colorscale": COLORS, "cmin": 0.0, "cmax": 2.0,
            "colorbar": {"title": {"text": "speed-up"}, "tickvals": [0, 0.5, 1, 1.5, 2],
                         "ticktext": ["0", "0.5", "1", "1.5", "2 or more"]},
        }
    )  # fmt: skip
    return dress(figure, 120 + (110 + 34 * len(batches)) * lines)


def _gain(here: dict[tuple[int, int], float | None], batch: int, k: int) -> float | None:
    plain, found = here.get((batch, 0)), here.get((batch, k))
    return plain / found if plain and found else None


def _text(tpot_ns: float | None) -> str:
    ms = milliseconds(tpot_ns)
    return "" if ms is None else f"{ms:.1f}"
