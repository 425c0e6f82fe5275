"""Plots of single steps and tokens: how long accepted drafts are, and how one answer came about."""

from __future__ import annotations

from typing import Any

from toolkit.measure.records import RequestRecord
from toolkit.optional import require
from toolkit.tuning.choose import Choice
from toolkit.tuning.grid import PLAIN
from toolkit.tuning.plot_style import NS_PER_MS, dress, look
from toolkit.tuning.results import Results

# What became of a token, its colour and its symbol.
KINDS = {
    "accepted": ("#0072B2", "square"),
    "recovered": ("#D55E00", "diamond"),
    "bonus": ("#009E73", "circle"),
}
ROW_HEIGHT = 190  # pixels of one domain's timeline


def lengths(results: Results) -> Any:
    """Share of the verify steps by accepted tokens, at the longest draft length measured."""
    go = require("plotly.graph_objects", extra="report", why="report.html")
    figure = go.Figure()
    longest = longest_draft(results)
    domains = list(dict.fromkeys(cell.domain for cell in results.cells))
    for domain in [d for d in domains if any(r.domain == d for r in results.records)]:
        steps = [
            count
            for record in results.records
            if (record.domain, record.k) == (domain, longest)
            for count in record.accepted_per_step
        ]
        shares = [steps.count(n) / len(steps) if steps else 0.0 for n in range(longest + 1)]
        figure.add_bar(
            x=list(range(longest + 1)),
            y=shares,
            name=domain,
            marker_color=look(domain, domains)["marker"]["color"],
            hovertemplate="%{x} accepted: %{y:.1%} of the steps",
        )
    figure.update_layout(barmode="group")
    figure.update_xaxes(title="accepted tokens of a verify step", dtick=1)
    figure.update_yaxes(title="share of the steps", tickformat=".0%", rangemode="tozero")
    return dress(figure, 400)


def longest_draft(results: Results) -> int:
    return max((record.k for record in results.records), default=0)


def timeline(results: Results) -> Any:
    """One answer of each domain, token by token, beside plain decoding of the same prompt."""
    subplots = require("plotly.subplots", extra="report", why="report.html")
    shown = examples(results)
    titles = [
        f"{run.domain}, batch size {run.batch_size}, k = {run.k}: prompt {run.prompt_id}"
        for run, _ in shown
    ]
    figure = subplots.make_subplots(
        rows=max(1, len(shown)), subplot_titles=titles, vertical_spacing=0.4 / max(2, len(shown))
    )
    for row, (run, plain) in enumerate(shown, 1):
        first = plain.chunk_ns[0]
        figure.add_scatter(
            x=[(at - first) / NS_PER_MS for at in plain.chunk_ns],
            y=list(range(1, len(plain.chunk_ns) + 1)),
            mode="lines",
            line={"color": "#888", "dash": "dash", "width": 1.5, "shape": "hv"},
            name="plain decoding",
            legendgroup="plain",
            showlegend=row == 1,
            hovertemplate="plain: token %{y} after %{x:.1f} ms",
            row=row,
            col=1,
        )
        tokens = tokens_of(run)
        for kind, (color, symbol) in KINDS.items():
            found = [(at, place) for at, place, what in tokens if what == kind]
            figure.add_scatter(
                x=[at for at, _ in found],
                y=[place for _, place in found],
                mode="markers",
                marker={"color": color, "symbol": symbol, "size": 6},
                name=kind,
                legendgroup=kind,
                showlegend=row == 1,
                hovertemplate=f"{kind}: token %{{y}} after %{{x:.1f}} ms",
                row=row,
                col=1,
            )
    figure.update_yaxes(title="tokens", rangemode="tozero")
    figure.update_xaxes(title="ms after the first token", row=max(1, len(shown)), col=1)
    return dress(figure, 120 + ROW_HEIGHT * max(1, len(shown)))


def tokens_of(record: RequestRecord) -> list[tuple[float, int, str]]:
    """(ms after the first token, place in the output, kind) of what every verify step emitted.

    The last step may have been cut, at a stop token or at the wanted length: then all its tokens
    may be accepted drafts.
    """
    found: list[tuple[float, int, str]] = []
    place = record.prefill_tokens
    gaps = zip(record.drafted_per_step, record.accepted_per_step, record.chunk_ns[1:], strict=True)
    for drafted, accepted, at in gaps:
        after = (at - record.chunk_ns[0]) / NS_PER_MS
        last = "bonus" if accepted == drafted else "recovered"
        for kind in ["accepted"] * accepted + [last]:
            if place < record.output_tokens:
                place += 1
                found.append((after, place, kind))
    return found


def examples(results: Results) -> list[tuple[RequestRecord, RequestRecord]]:
    """Of each domain, at its smallest batch size: the request with the median gain, and plain."""
    found = []
    for choice in _smallest(results):
        pairs = [
            (run, plain)
            for run in results.records
            if (run.domain, run.batch_size, run.k)
            == (choice.domain, choice.batch_size, choice.best.k)
            and run.output_tokens > 1
            for plain in results.records
            if (plain.round, plain.prompt_id, plain.batch_size, plain.domain)
            == (run.round, run.prompt_id, run.batch_size, run.domain)
            and plain.k == PLAIN
        ]
        if pairs:
            ordered = sorted(pairs, key=lambda pair: _gain(*pair))
            found.append(ordered[len(ordered) // 2])
    return found


def _smallest(results: Results) -> list[Choice]:
    domains = {record.domain for record in results.records}
    first: dict[str, Choice] = {}
    for choice in sorted(results.choices, key=lambda choice: choice.batch_size):
        if choice.domain in domains:
            first.setdefault(choice.domain, choice)
    return list(first.values())


def _gain(run: RequestRecord, plain: RequestRecord) -> float:
    return (plain.e2e_ns - plain.ttft_ns) / max(1, run.e2e_ns - run.ttft_ns)
