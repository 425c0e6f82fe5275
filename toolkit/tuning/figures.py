"""The plots of the report, as plotly figures."""

from __future__ import annotations

from typing import Any

from toolkit.optional import require
from toolkit.tuning.choose import Choice
from toolkit.tuning.figures_machines import machines
from toolkit.tuning.figures_surface import surface
from toolkit.tuning.figures_tokens import lengths, timeline
from toolkit.tuning.plot_style import NS_PER_MS, bars, dress, look, milliseconds
from toolkit.tuning.results import Results
from toolkit.tuning.summary import Cell
from toolkit.tuning.trace_mode import TraceReport, pairs


def figures(results: Results) -> list[tuple[str, str, Any]]:
    """(title, how to read it, figure) in the order of the report."""
    surfaced = results.trace.predicted if results.trace else results.cells
    shown = [
        (
            "TPOT surface",
            ("Predicted from the trace" if results.trace else "Measured")
            + ": TPOT p50 in ms by draft length and batch size. Blue is faster than plain decoding "
            "of the same batch size, red is slower.",
            surface(surfaced),
        ),
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
        (
            "Accepted tokens of a verify step",
            "How many tokens of a draft stood, at the longest draft length measured, all batch "
            "sizes together. Each step emits one more: the recovered or the bonus token.",
            lengths(results),
        ),
        (
            "Token timeline",
            "The request with the median gain in each domain, at the smallest batch size and its "
            "best draft length. Tokens that arrive together stand above each other: accepted "
            "drafts, then the recovered token that replaces a refused draft, or the bonus token "
            "after a whole one. Dashed: plain decoding of the same prompt.",
            timeline(results),
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
    if results.outcome.timeline:
        shown.append(
            (
                "Which machine measured what, and when",
                "One bar per round, from being sent to being heard of; the first on each machine "
                "loads the engines. A round's draft lengths are compared with each other only.",
                machines(results),
            )
        )
    return shown


def _domains(results: Results) -> list[str]:
    return list(dict.fromkeys(cell.domain for cell in results.cells))


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
            error_y=bars([choice.best.speedup for choice in shown], 1.0),
            mode="lines+markers",
            customdata=[[choice.best.k, choice.verdict, choice.batch_size] for choice in shown],
            hovertemplate="batch %{customdata[2]}, k = %{customdata[0]}: %{y:.2f}x "
            "(%{customdata[1]})",
            **look(domain, domains),
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
    return dress(figure, 460)


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
            shown = look(domain, domains)
            drafted = [c for c in cells if not c.plain and c.tpot_p50_ns is not None]
            # Beside each other, so that bars do not hide one another.
            shift = 0.08 * (domains.index(domain) - (len(domains) - 1) / 2)
            figure.add_scatter(
                x=[cell.k + shift for cell in drafted],
                y=[milliseconds(cell.tpot_p50_ns) for cell in drafted],
                error_y=bars([cell.tpot_p50_interval for cell in drafted], NS_PER_MS),
                mode="lines+markers",
                showlegend=column == 1,
                customdata=[cell.k for cell in drafted],
                hovertemplate="k = %{customdata}: %{y:.2f} ms",
                row=1,
                col=column,
                **shown,
            )
            _plain_line(figure, cells, drafted, shown, column)
    ks = sorted({cell.k for cell in results.cells if not cell.plain})
    figure.update_xaxes(title="draft length k", tickvals=ks)
    # One wild interval must not flatten every line: bars may leave the plot.
    highest = max((milliseconds(cell.tpot_p50_ns) or 0 for cell in results.cells), default=0)
    figure.update_yaxes(range=[0, 1.4 * highest])
    figure.update_yaxes(title="TPOT p50 (ms per token)", col=1)
    return dress(figure, 460)


def _plain_line(
    figure: Any, cells: list[Cell], drafted: list[Cell], shown: dict[str, Any], column: int
) -> None:
    plain = next((c for c in cells if c.plain and c.tpot_p50_ns is not None), None)
    if plain is None or not drafted:
        return
    ends = [min(cell.k for cell in drafted) - 0.3, max(cell.k for cell in drafted) + 0.3]
    figure.add_scatter(
        x=ends,
        y=[milliseconds(plain.tpot_p50_ns)] * 2,
        mode="lines",
        line={**shown["line"], "dash": "dash", "width": 1.5},
        legendgroup=shown["legendgroup"],
        showlegend=False,
        hovertemplate=f"{shown['name']}, plain: %{{y:.2f}} ms<extra></extra>",
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
                **look(domain, domains),
            )
    figure.update_xaxes(title="position in the draft", dtick=1)
    figure.update_yaxes(range=[0, 1.03], tickformat=".0%")
    figure.update_yaxes(title="accepted", col=1)
    return dress(figure, 420)


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
            shown = look(domain, domains)
            line = [c for c in trace.predicted if (c.batch_size, c.domain) == (batch, domain)]
            both = [p for p in compared if (p[0].batch_size, p[0].domain) == (batch, domain)]
            figure.add_scatter(
                x=[cell.k for cell in line],
                y=[milliseconds(cell.tpot_p50_ns) for cell in line],
                mode="lines",
                showlegend=column == 1,
                hovertemplate="predicted, k = %{x}: %{y:.2f} ms",
                row=1,
                col=column,
                **{**shown, "marker": None},
            )
            for place, (name, symbol) in enumerate((("predicted", "x"), ("measured", "circle"))):
                figure.add_scatter(
                    x=[pair[place].k for pair in both],
                    y=[milliseconds(pair[place].tpot_p50_ns) for pair in both],
                    mode="markers",
                    showlegend=False,
                    hovertemplate=f"{name} in the same rounds, k = %{{x}}: %{{y:.2f}} ms",
                    row=1,
                    col=column,
                    **{**shown, "line": None, "marker": {**shown["marker"], "symbol": symbol}},
                )
    figure.update_xaxes(title="draft length k", dtick=1)
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title="TPOT p50 (ms per token)", col=1)
    return dress(figure, 460)
