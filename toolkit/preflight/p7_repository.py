"""P7: the Triton model repository, by the rules of `spectool lint`."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.errors import InputError
from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding, Level, findings_of
from toolkit.serving.lint import lint


def check(facts: Facts) -> Iterator[Finding]:
    """Errors of the lint are problems, its warnings are notes."""
    if facts.repository is None:
        return
    try:
        found = lint(facts.repository)
    except InputError as error:
        yield from findings_of("repository", error)
        return
    for item in found:
        line = f":{item.line}" if item.line else ""
        level: Level = "problem" if item.level == "error" else "note"
        yield Finding(f"{facts.repository}/{item.file}{line}", item.message, level)
