"""The support matrix: every drafter on every backend and release, as the drafters answer."""

from __future__ import annotations

from itertools import groupby
from typing import Any

Column = tuple[str, tuple[str, ...]]  # backend, releases that answer alike


def support() -> list[dict[str, Any]]:
    """One entry for each drafter, backend and release; `reason` is null where it is supported."""
    from toolkit.registry import BACKENDS, DRAFTERS

    return [
        {
            "drafter": drafter,
            "backend": backend,
            "release": release or None,
            "reason": DRAFTERS[drafter].unsupported_on(backend, release),
        }
        for drafter in DRAFTERS
        for backend in BACKENDS
        for release in BACKENDS[backend].releases
    ]


def markdown() -> str:
    """The table for people, releases that answer alike in one column."""
    from toolkit.registry import DRAFTERS

    columns = _columns()
    rows = [
        [f"`{drafter}`", *("yes" if _supported(drafter, c) else "-" for c in columns)]
        for drafter in DRAFTERS
        if drafter != "none"
    ]
    header = ["drafter", *map(_title, columns)]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def reasons() -> list[str]:
    """Why not, once for each drafter and backend: the newest release's answer."""
    latest = {
        (entry["drafter"], entry["backend"]): entry["reason"]
        for entry in support()
        if entry["reason"]
    }
    return [f"{drafter}: {reason}" for (drafter, _), reason in latest.items()]


def _columns() -> list[Column]:
    from toolkit.registry import BACKENDS, DRAFTERS

    found = []
    for backend in BACKENDS:

        def answers(release: str, backend: str = backend) -> tuple[bool, ...]:
            return tuple(DRAFTERS[d].unsupported_on(backend, release) is None for d in DRAFTERS)

        for _, alike in groupby(BACKENDS[backend].releases, answers):
            found.append((backend, tuple(alike)))
    return found


def _supported(drafter: str, column: Column) -> bool:
    from toolkit.registry import DRAFTERS

    backend, releases = column
    return DRAFTERS[drafter].unsupported_on(backend, releases[0]) is None


def _title(column: Column) -> str:
    backend, (first, *more) = column
    if not first:
        return backend
    return f"{backend} {first}" + (f" to {more[-1]}" if more else "")
