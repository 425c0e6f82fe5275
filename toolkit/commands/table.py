"""Plain aligned text for people: numbers to the right, words to the left."""

from __future__ import annotations

import calendar
import time
from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), right: str = "") -> str:
    """Columns two spaces apart; `right` has an `r` for each column that aligns right."""
    lines = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    sides = right.ljust(len(widths))
    return "\n".join(
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(line, widths, sides, strict=True)
        ).rstrip()
        for line in lines
    )


def size(count: int) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def seconds_since(stamp: str) -> float:
    """Seconds since a UTC time like 2026-01-31T12:00:00Z."""
    return time.time() - calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))


def age(stamp: str) -> str:
    """`5 min`, `3 h`, `12 d` since a UTC time."""
    seconds = max(seconds_since(stamp), 0.0)
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"
