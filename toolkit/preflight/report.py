"""What the checks found, and the words in which they say it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from toolkit.errors import CheckpointError, MissingDependencyError, SpectoolError

Level = Literal["problem", "note", "missing"]


@dataclass(frozen=True)
class Finding:
    """One thing: where, and what was found, what is allowed, what to do."""

    where: str
    text: str
    level: Level = "problem"

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass
class Report:
    """What stands in the way of a build, and what is worth knowing although it does not."""

    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # packages and devices
    notes: list[str] = field(default_factory=list)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)  # role -> its config.json
    checks: dict[str, str] = field(default_factory=dict)  # P1 .. P9 -> ok, problems or notes
    memory: dict[str, Any] | None = None  # the budget of one GPU, when one was named

    @property
    def ok(self) -> bool:
        return not self.problems and not self.missing

    def add(self, where: str, error: SpectoolError) -> None:
        """An error that a check met; each of its problems is one."""
        for finding in findings_of(where, error):
            self.take(finding)

    def take(self, finding: Finding) -> None:
        """A finding, once."""
        places = {"problem": self.problems, "note": self.notes, "missing": self.missing}
        found = places[finding.level]
        if str(finding) not in found:
            found.append(str(finding))


def findings_of(where: str, error: SpectoolError) -> list[Finding]:
    """An error as findings; a missing package is not the recipe's fault."""
    texts = error.problems if isinstance(error, CheckpointError) else [str(error)]
    level: Level = "missing" if isinstance(error, MissingDependencyError) else "problem"
    return [Finding(where, text, level) for text in texts]
