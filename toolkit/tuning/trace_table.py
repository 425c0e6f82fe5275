"""Predicted against measured, one table per batch size."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.tuning.summary import Cell
from toolkit.tuning.table import milliseconds, number, print_table
from toolkit.tuning.trace_findings import tpot_error
from toolkit.tuning.trace_mode import TraceReport, pairs
from toolkit.tuning.trees import ScoredTree, Trees

# The last three are over the confirming rounds alone.
TRACE_COLUMNS = (
    "domain",
    "k",
    "acceptance length",
    "TPOT p50 ms",
    "speed-up",
    "95 % interval",
    "predicted there",
    "measured",
    "off by",
)
# The same for a terminal of 80 columns.
_HEADS = (
    "domain",
    "k",
    "accept.\nlength",
    "TPOT\np50 ms",
    "speed\n-up",
    "95 %\ninterval",
    "there:\npredicted",
    "meas-\nured",
    "off\nby",
)


def trace_rows(report: TraceReport, measured: Sequence[Cell], batch: int) -> list[tuple[str, ...]]:
    """Every draft length of one batch size; the best policy stands last in its domain."""
    both = {
        (p.domain, p.k): (p, m) for p, m in pairs(report.again, measured) if p.batch_size == batch
    }
    scored = report.adaptive.get(batch)
    adaptive = {cell.domain: cell for cell in scored.cells} if scored else {}
    rows = []
    cells = [cell for cell in report.predicted if cell.batch_size == batch]
    for place, cell in enumerate(cells):
        label = "plain" if cell.plain else str(cell.k)
        rows.append(
            _row(cell, cell.domain if cell.plain else "", label, both.get((cell.domain, cell.k)))
        )
        last = place + 1 == len(cells) or cells[place + 1].domain != cell.domain
        if last and cell.domain in adaptive:
            best = adaptive[cell.domain]
            label = f"sure to {best.k}" if scored and scored.policy.confidence else f"to {best.k}"
            rows.append(_row(best, "", label, None))
    return rows


def _row(cell: Cell, domain: str, label: str, both: tuple[Cell, Cell] | None) -> tuple[str, ...]:
    gain = cell.speedup
    error = tpot_error(*both) if both else None
    return (
        domain,
        label,
        "" if cell.plain else number(cell.acceptance_length, "{:.2f}"),
        milliseconds(cell.tpot_p50_ns),
        f"{gain.value:.2f}x" if gain else "",
        f"{gain.low:.2f} .. {gain.high:.2f}" if gain else "",
        milliseconds(both[0].tpot_p50_ns) if both else "",
        milliseconds(both[1].tpot_p50_ns) if both else "",
        number(error, "{:+.1%}") if both else "",
    )


TREE_COLUMNS = ("tree", "nodes", "depth", "acceptance length", "of other texts", "")


def tree_rows(trees: Trees) -> list[tuple[str, ...]]:
    """By number of nodes, the recipe's own tree first."""
    rows = [("recipe's", *_tree_row(trees.own), "")]
    for place, tree in enumerate(trees.best):
        first, last = "" if place else "best", "best" if tree is trees.same_size else ""
        rows.append((first, *_tree_row(tree), last))
    return rows


def _tree_row(tree: ScoredTree) -> tuple[str, ...]:
    lengths = (f"{length:.2f}" for length in (tree.acceptance_length, tree.expected))
    return (str(len(tree.choices)), str(tree.depth), *lengths)


def tree_line(trees: Trees) -> str:
    """To paste into the recipe."""
    return f"{trees.option}: {[list(path) for path in trees.same_size.choices]}"


def print_trace_tables(report: TraceReport, measured: Sequence[Cell]) -> None:
    """What was predicted, before what was measured."""
    for batch in sorted({cell.batch_size for cell in report.predicted}):
        rows = [(*row, "") for row in trace_rows(report, measured, batch)]
        print_table(f"batch size {batch}, predicted for every k", (*_HEADS, ""), rows)
    if report.trees:
        print_table("trees, at any batch size", TREE_COLUMNS, tree_rows(report.trees))
