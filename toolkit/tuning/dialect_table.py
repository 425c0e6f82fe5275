"""The measured acceptance as another tool would have counted it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from toolkit.measure.dialects import dialect
from toolkit.tuning.summary import Cell
from toolkit.tuning.table import number, print_table

_HEADS = ("domain", "k", "acceptance rate", "acceptance length", "")


def in_dialect(name: str, cells: Sequence[Cell]) -> dict[str, Any]:
    """For the JSON document: a row for every speculative cell."""
    spoken = dialect(name)
    rows = [
        {"batch_size": c.batch_size, "domain": c.domain, "k": c.k, **spoken.describe(c.counts)}
        for c in cells
        if not c.plain
    ]
    return {"dialect": name, "summary": rows}


def print_dialect(name: str, cells: Sequence[Cell]) -> None:
    """One table per batch size."""
    for batch in sorted({cell.batch_size for cell in cells}):
        lines = list(_lines(name, [cell for cell in cells if cell.batch_size == batch]))
        print_table(f"batch size {batch}, as {name} counts it", _HEADS, lines)


def _lines(name: str, cells: Sequence[Cell]) -> Iterator[tuple[str, ...]]:
    spoken, before = dialect(name), ""
    for cell in cells:
        if cell.plain:
            continue
        found = spoken.describe(cell.counts)
        first = cell.domain if cell.domain != before else ""
        before = cell.domain
        rate, length = found["acceptance_rate"], found["acceptance_length"]
        yield first, str(cell.k), number(rate, "{:.3f}"), number(length, "{:.2f}"), ""
