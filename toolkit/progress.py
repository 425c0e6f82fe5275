"""Progress on stderr for anything longer than a moment; silent when nobody is watching."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Advances towards a known total, in any unit (bytes, tensors, points)."""

    def advance(self, amount: float = 1) -> None: ...

    def describe(self, text: str) -> None: ...


class Silent:
    """No terminal, or `--json`: work goes on without a word."""

    def advance(self, amount: float = 1) -> None:
        pass

    def describe(self, text: str) -> None:
        pass


@contextmanager
def progress(title: str, total: float) -> Iterator[Progress]:
    """A bar with time left on stderr when stderr is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield Silent()
        return
    from rich.console import Console  # noqa: PLC0415 - 50 ms that a pipe or a test need not pay
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if total < 10_000 else TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=total)

        class Bar:
            def advance(self, amount: float = 1) -> None:
                bars.advance(task, amount)

            def describe(self, text: str) -> None:
                bars.update(task, description=text)

        yield Bar()
