"""A process and all that it started, as /proc shows them."""

from __future__ import annotations

from pathlib import Path


def family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def memory_mb(pid: int) -> float:
    """Resident memory of the family."""
    total = 0
    for process in family(pid):
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return total / 1000
