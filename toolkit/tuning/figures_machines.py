"""The plot of a tuning run that many machines shared: who measured what, and when."""

from __future__ import annotations

from typing import Any

from toolkit.optional import require
from toolkit.tuning.plot_style import PALETTE, dress
from toolkit.tuning.results import Results


def machines(results: Results) -> Any:
    """A row for each machine, a bar for each round."""
    go = require("plotly.graph_objects", extra="report", why="report.html")
    slots = results.outcome.timeline
    names = list(dict.fromkeys(slot.name for slot in slots))
    figure = go.Figure()
    for place, name in enumerate(names):
        own = [slot for slot in slots if slot.name == name]
        figure.add_bar(
            orientation="h",
            name=name,
            y=[slot.node for slot in own],
            base=[slot.start for slot in own],
            x=[slot.seconds for slot in own],
            marker={"color": PALETTE[place % len(PALETTE)], "line": {"color": "#fff", "width": 1}},
        )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title="seconds since measuring began", rangemode="tozero")
    return dress(figure, 160 + 60 * len({slot.node for slot in slots}))
