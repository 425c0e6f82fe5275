"""The plots of the report, as plotly figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.measure.prompts import ALL_DOMAINS
from toolkit.optional import require
from toolkit.tuning.choose import Choice
from toolkit.tuning.results import Results
from toolkit.tuning.summary import Cell
from toolkit.tuning.trace_mode import TraceReport, pairs

NS_PER_MS = 1_000_000
# Okabe and Ito: told apart by colour-blind readers and in grey print; black is all domains.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
FONT = {"family": "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif", "size": 14}


def figures(results: Results) -> list[tuple[str, str, Any]]:
    """(title, how to read it, figure) in the order of the report."""
    shown = [
        (
            "Speed-up against batch size",
            "The best draft length of each domain at each batch size, against plain decoding of "
            "the same prompts. Bars: 95 % bootstrap interval. A bar that reaches below 1 means: "
            "off.",
            _speedup(results),
        ),
        (
            "TPOT against draft length",
            "Median time per output token. Bars: 95 % bootstrap interval. Dashed: plain decoding "
            "of the same domain.",
            _tpot(results),
        ),
        (
            "Acceptance by position",
            "Joint: the share of verify steps in which the draft was accepted up to this position. "
            "Conditional: the share accepted here among those drafted here with everything before "
            "accepted. At the longest draft length, all batch sizes together (acceptance does not "
            "depend on the batch).",
            _acceptance(results),
        ),
    ]
    if results.trace:
        shown.append(
            (
                "Predicted against measured",
                "TPOT p50 at each draft length: lines as predicted from the trace for all prompts, "
                "crosses as predicted for the prompts of the confirming rounds, dots as measured "
                "in them. Length 0 is plain decoding.",
                _predicted(results, results.trace),
            )
        )
    return shown


def _domains(results: Results) -> list[str]:
    return list(dict.fromkeys(cell.domain for cell in results.cells))


def _look(domain: str, domains: Sequence[str]) -> dict[str, Any]:
    """Colour and symbol of a domain, the same in every plot."""
    place = domains.index(domain)
    color = "#111111" if domain == ALL_DOMAINS else PALETTE[place % len(PALETTE)]
    return {
        "line": {"color": color, "width": 2.5 if domain == ALL_DOMAINS else 2},
        "marker": {"color": color, "size": 8, "symbol": SYMBOLS[place % len(SYMBOLS)]},
        "name": domain,
        "legendgroup": domain,
    }


def _speedup(results: Results) -> Any:
    go = require("plotly.graph_objects", extra="report", why="report.html")
    domains = _domains(results)
    batches = sorted({choice.batch_size for choice in results.choices})
    figure = go.Figure()
    for place, domain in enumerate(domains):
        shown = [c for c in results.choices if c.domain == domain and c.best.speedup]
        # Beside each other, so that bars do not hide one another.
        shift = 0.1 * (place - (len(domains) - 1) / 2)
        figure.add_scatter(
            x=[batches.index(choice.batch_size) + shift for choice in shown],
            y=[choice.best.speedup.value for choice in shown if choice.best.speedup],
            error_y=_bars([choice.best.speedup for choice in shown], 1.0),
            mode="lines+markers",
            customdata=[[choice.best.k, choice.verdict, choice.batch_size] for choice in shown],
            hovertemplate="batch %{customdata[2]}, k = %{customdata[0]}: %{y:.2f}x "
            "(%{customdata[1]})",
            **_look(domain, domains),
        )
    for choice in results.choices:
        if choice.best.speedup:
            _label(figure, choice, batches, domains)
    figure.add_hline(y=1, line_color="#666", line_dash="dash", line_width=1)
    figure.update_xaxes(
        title="batch size (requests)",
        tickvals=list(range(len(batches))),
        ticktext=[str(batch) for batch in batches],
        range=[-0.5, len(batches) - 0.5],
    )
    figure.update_yaxes(title="speed-up over plain decoding (x)", rangemode="tozero")
    return _dress(figure, 460)


def _label(figure: Any, choice: Choice, batches: list[int], domains: list[str]) -> None:
    """The draft length above its interval."""
    place = domains.index(choice.domain)
    assert choice.best.speedup is not None
    figure.add_annotation(
        x=batches.index(choice.batch_size) + 0.1 * (place - (len(domains) - 1) / 2),
        y=choice.best.speedup.high,
        text=f"k={choice.best.k}" if choice.verdict == "on" else choice.verdict,
        showarrow=False,
        yshift=10,
        font={"size": 11, "color": "#444"},
    )


def _tpot(results: Results) -> Any:
    subplots = require("plotly.subplots", extra="report", why="report.html")
    domains = _domains(results)
    batches = sorted({cell.batch_size for cell in results.cells})
    figure = subplots.make_subplots(
        cols=len(batches),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[f"batch size {batch}" for batch in batches],
    )
    for column, batch in enumerate(batches, 1):
        for domain in domains:
            cells = [c for c in results.cells if (c.batch_size, c.domain) == (batch, domain)]
            look = _look(domain, domains)
            drafted = [c for c in cells if not c.plain and c.tpot_p50_ns is not None]
            # Beside each other, so that bars do not hide one another.
            shift = 0.08 * (domains.index(domain) - (len(domains) - 1) / 2)
            figure.add_scatter(
                x=[cell.k + shift for cell in drafted],
                y=[_ms(cell.tpot_p50_ns) for cell in drafted],
                error_y=_bars([cell.tpot_p50_interval for cell in drafted], NS_PER_MS),
                mode="lines+markers",
                showlegend=column == 1,
                customdata=[cell.k for cell in drafted],
                hovertemplate="k = %{customdata}: %{y:.2f} ms",
                row=1,
                col=column,
                **look,
            )
            _plain_line(figure, cells, drafted, look, column)
    ks = sorted({cell.k for cell in results.cells if not cell.plain})
    figure.update_xaxes(title="draft length k", tickvals=ks)
    # One wild interval must not flatten every line: bars may leave the plot.
    highest = max((_ms(cell.tpot_p50_ns) or 0 for cell in results.cells), default=0)
    figure.update_yaxes(range=[0, 1.4 * highest])
    figure.update_yaxes(title="TPOT p50 (ms per token)", col=1)
    return _dress(figure, 460)


def _plain_line(
    figure: Any, cells: list[Cell], drafted: list[Cell], look: dict[str, Any], column: int
) -> None:
    plain = next((c for c in cells if c.plain and c.tpot_p50_ns is not None), None)
    if plain is None or not drafted:
        return
    ends = [min(cell.k for cell in drafted) - 0.3, max(cell.k for cell in drafted) + 0.3]
    figure.add_scatter(
        x=ends,
        y=[_ms(plain.tpot_p50_ns)] * 2,
        mode="lines",
        line={**look["line"], "dash": "dash", "width": 1.5},
        legendgroup=look["legendgroup"],
        showlegend=False,
        hovertemplate=f"{look['name']}, plain: %{{y:.2f}} ms<extra></extra>",
        row=1,
        col=column,
    )


def _acceptance(results: Results) -> Any:
    subplots = require("plotly.subplots", extra="report", why="report.html")
    domains = _domains(results)
    figure = subplots.make_subplots(
        cols=2, shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=["joint", "conditional"]
    )
    longest = max((cell.k for cell in results.cells), default=0)
    for domain in domains:
        joint, conditional = results.acceptance_by_position(domain, longest)
        for column, values in enumerate((joint, conditional), 1):
            figure.add_scatter(
                x=list(range(1, longest + 1)),
                y=values,
                mode="lines+markers",
                showlegend=column == 1,
                hovertemplate="position %{x}: %{y:.1%}",
                row=1,
                col=column,
                **_look(domain, domains),
            )
    figure.update_xaxes(title="position in the draft", dtick=1)
    figure.update_yaxes(range=[0, 1.03], tickformat=".0%")
    figure.update_yaxes(title="accepted", col=1)
    return _dress(figure, 420)


def _predicted(results: Results, trace: TraceReport) -> Any:
    subplots = require("plotly.subplots", extra="report", why="report.html")
    domains = list(dict.fromkeys(cell.domain for cell in trace.predicted))
    batches = sorted({cell.batch_size for cell in trace.predicted})
    figure = subplots.make_subplots(
        cols=len(batches),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[f"batch size {batch}" for batch in batches],
    )
    compared = pairs(trace.again, results.cells)
    for column, batch in enumerate(batches, 1):
        for domain in domains:
            look = _look(domain, domains)
            line = [c for c in trace.predicted if (c.batch_size, c.domain) == (batch, domain)]
            both = [p for p in compared if (p[0].batch_size, p[0].domain) == (batch, domain)]
            figure.add_scatter(
                x=[cell.k for cell in line],
                y=[_ms(cell.tpot_p50_ns) for cell in line],
                mode="lines",
                showlegend=column == 1,
                hovertemplate="predicted, k = %{x}: %{y:.2f} ms",
                row=1,
                col=column,
                **{**look, "marker": None},
            )
            for place, (name, symbol) in enumerate((("predicted", "x"), ("measured", "circle"))):
                figure.add_scatter(
                    x=[pair[place].k for pair in both],
                    y=[_ms(pair[place].tpot_p50_ns) for pair in both],
                    mode="markers",
                    showlegend=False,
                    hovertemplate=f"{name} in the same rounds, k = %{{x}}: %{{y:.2f}} ms",
                    row=1,
                    col=column,
                    **{**look, "line": None, "marker": {**look["marker"], "symbol": symbol}},
                )
    figure.update_xaxes(title="draft length k", dtick=1)
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title="TPOT p50 (ms per token)", col=1)
    return _dress(figure, 460)


def _bars(intervals: Sequence[Any], unit: float) -> dict[str, Any]:
    """Asymmetric error bars; an absent interval has none."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [(i.high - i.value) / unit if i else 0 for i in intervals],
        "arrayminus": [(i.value - i.low) / unit if i else 0 for i in intervals],
        "thickness": 1.2,
        "width": 3,
    }


def _ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NS_PER_MS


def _dress(figure: Any, height: int) -> Any:
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
