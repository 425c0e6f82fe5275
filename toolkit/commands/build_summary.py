"""A build as Markdown, for the page on which a CI system shows a job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.commands.table import size
from toolkit.errors import InputError

if TYPE_CHECKING:
    from toolkit.execute import Made
    from toolkit.plan import Plan


def write_summary(
    path: Path, plans: Sequence[Plan], done: Sequence[Made], error: str | None
) -> None:
    """Add it to the end of `path`: CI systems collect what several steps say in one file."""
    text = summary(plans, done, error)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as failure:
        raise InputError(f"{path}: {failure.strerror or failure}") from None


def summary(plans: Sequence[Plan], done: Sequence[Made], error: str | None) -> str:
    """A heading, a table with a row for each artefact, and the error if there was one."""
    from toolkit.steps import common

    made = {(m.artefact.kind, m.artefact.roles, m.artefact.command): m for m in done}
    rows = []
    for artefact in common(plans):
        found = made.get((artefact.kind, artefact.roles, artefact.command))
        digest = found.entry.digest if found else artefact.digest
        rows.append(
            (
                f"{artefact.kind.removesuffix('s')} {artefact.role}",
                f"`{digest[:12]}`" if digest else "not known here",
                _state(found),
                size(found.bytes) if found else "",
            )
        )
    lines = [
        f"### spectool build {', '.join(plan.recipe.name for plan in plans)}",
        "",
        "| artefact | digest | state | size |",
        "| --- | --- | --- | ---: |",
        *("| " + " | ".join(map(_cell, row)) + " |" for row in rows),
    ]
    if error:  # indented is code in Markdown, whatever it says
        lines += ["", *(f"    {line}" for line in error.splitlines())]
    return "\n".join([*lines, "", ""])


def _state(found: Made | None) -> str:
    if found is None:
        return "not made"
    return "cached" if found.entry.cached else f"built in {found.seconds:.1f} s"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
