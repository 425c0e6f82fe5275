"""The summary for people at a terminal, or for a pipe: one table per batch size."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from toolkit.tuning.choose import Choice
from toolkit.tuning.compare import Comparison
from toolkit.tuning.diagnosis import Diagnosis
from toolkit.tuning.results import Results
from toolkit.tuning.summary import Cell

NS_PER_MS = 1_000_000
COLUMNS = (
    "domain",
    "k",
    "acceptance rate",
    "acceptance length",
    "TPOT p50 ms",
    "TPOT p99 ms",
    "tokens/s",
    "speed-up",
    "95 % interval",
    "",
)

# The same for a terminal of 80 columns.
_HEADS = (
    "domain",
    "k",
    "accept.\nrate",
    "accept.\nlength",
    "TPOT\np50 ms",
    "TPOT\np99 ms",
    "tokens\n/s",
    "speed\n-up",
    "95 %\ninterval",
    "",
)


def rows(cells: Sequence[Cell], choices: Sequence[Choice]) -> list[tuple[str, ...]]:
    """The cells of one batch size as text, in `COLUMNS`; the domain stands in its first line."""
    verdicts = {choice.domain: choice for choice in choices}
    return [_row(cell, verdicts.get(cell.domain)) for cell in cells]


def _row(cell: Cell, choice: Choice | None) -> tuple[str, ...]:
    times = (
        milliseconds(cell.tpot_p50_ns),
        milliseconds(cell.tpot_p99_ns),
        number(cell.output_throughput, "{:.1f}"),
    )
    if cell.plain:
        mark = choice.verdict if choice and choice.verdict != "on" else ""
        return (cell.domain, "plain", "", "", *times, "", "", mark)
    gain = cell.speedup
    return (
        "",
        str(cell.k),
        number(cell.acceptance_rate, "{:.1%}"),
        number(cell.acceptance_length, "{:.2f}"),
        *times,
        f"{gain.value:.2f}x" if gain else "-",
        f"{gain.low:.2f} .. {gain.high:.2f}" if gain else "-",
        "best" if choice and choice.k == cell.k else "",
    )


def number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def milliseconds(nanoseconds: float | None) -> str:
    return "-" if nanoseconds is None else f"{nanoseconds / NS_PER_MS:.2f}"


def print_tables(results: Results) -> None:
    """One table per batch size."""
    for batch in sorted({cell.batch_size for cell in results.cells}):
        cells = [cell for cell in results.cells if cell.batch_size == batch]
        choices = [choice for choice in results.choices if choice.batch_size == batch]
        print_table(f"batch size {batch}", _HEADS, rows(cells, choices))


def diagnosis_lines(diagnoses: Sequence[Diagnosis]) -> list[str]:
    """From symptoms to causes: two lines for each."""
    return [
        line
        for found in diagnoses
        for line in (
            f"{found.symptom}: {found.cause} ({found.numbers})",
            f"  try: {found.remedy}",
        )
    ]


def gate_lines(comparison: Comparison) -> list[str]:
    """A line for each gate that failed, and what the two runs do not share."""
    failed = [gate for gate in comparison.gates if not gate.passed]
    lines = [
        f"fail: {gate.domain}, batch {gate.batch_size}: {gate.what} was {gate.before}, is now "
        f"{gate.after}"
        for gate in failed
    ]
    lines += [f"note: {note}" for note in comparison.notes]
    return [*lines, f"{len(comparison.gates) - len(failed)} of {len(comparison.gates)} gates pass"]


def print_table(title: str, heads: Sequence[str], lines: Sequence[tuple[str, ...]]) -> None:
    """Colours and rules on a terminal, plain columns into a pipe; a domain opens a section."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal else 120)
    table = Table(
        box=box.SIMPLE_HEAD if terminal else None,
        title=title,
        title_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in heads:
        left = name in ("domain", "tree", "")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for line in lines:
        style = {"best": "bold green", "off": "yellow"}.get(line[-1])
        if line[0] and table.row_count:
            table.add_section()
        table.add_row(*line, style=style)
    console.print(table)
    console.print()
