"""What can go wrong, by exit code: 1 a run failed, 2 bad input, 3 something is not installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class SpectoolError(Exception):
    """A failure that a person can act on; `cli.main` prints its message without a traceback."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses build their message from other arguments; a worker process sends the message.
        return _restore, (type(self), str(self), dict(vars(self)))


def _restore(kind: type[SpectoolError], message: str, state: dict[str, Any]) -> SpectoolError:
    error = kind.__new__(kind, message)
    vars(error).update(state)
    return error


class InputError(SpectoolError):
    """A file, value or combination given by the user cannot be used."""

    exit_code = 2


class RecipeError(InputError):
    """Everything wrong with one recipe, collected before it is raised."""

    def __init__(self, recipe: str, problems: Sequence[str]) -> None:
        self.recipe = recipe
        self.problems = list(problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{recipe}: {len(self.problems)} problem(s)\n{lines}")


class CheckpointError(InputError):
    """Everything wrong with one checkpoint, collected before anything is written."""

    def __init__(self, checkpoint: str, problems: Sequence[str]) -> None:
        self.checkpoint = checkpoint
        self.problems = list(problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{checkpoint}: {len(self.problems)} problem(s)\n{lines}")


class UnknownNameError(InputError):
    """A name that no table has, with the nearest one that it does have."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(
            f"unknown {kind} {name!r}{did_you_mean(name, names)} (known: {', '.join(names)})"
        )


class MissingDependencyError(SpectoolError):
    """A package, program or device that this step needs is not here."""

    exit_code = 3


class BuildError(SpectoolError):
    """A build step failed; its log, if it wrote one, stays where the message says."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        self.log = log
        super().__init__(f"{message}\n  log: {log}" if log else message)


class CapacityError(SpectoolError):
    """No free slot or KV block for another sequence; the caller may queue and try again."""


class RunError(SpectoolError):
    """A server, benchmark or check ran and failed."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known name, or nothing."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
