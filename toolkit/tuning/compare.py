"""Gates for a pipeline: this run against an older one, per domain and batch size.

Compared is what does not depend on the machine's mood: acceptance, and speed-ups, which are paired
within their own run. Absolute times are shown and never fail a gate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import InputError
from toolkit.tuning.choose import Choice
from toolkit.tuning.summary import Cell

SCHEMA = "spectool.tune/1"
SLOWER = 0.05  # of a speed-up may be lost before it counts, beyond what the intervals allow
REFUSED = 0.02  # of an acceptance length
# What must be the same for two runs to be about the same thing.
SAME = ("max_tokens", "sampling")


@dataclass(frozen=True)
class Gate:
    """One thing that must not have become worse."""

    domain: str
    batch_size: int
    what: str
    before: str
    after: str
    passed: bool


@dataclass(frozen=True)
class Comparison:
    """Every gate, and how the conditions differ."""

    old: str  # path
    gates: tuple[Gate, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return all(gate.passed for gate in self.gates)

    def to_json(self) -> dict[str, Any]:
        return {
            "old": self.old,
            "passed": self.passed,
            "gates": [asdict(gate) for gate in self.gates],
            "notes": list(self.notes),
        }


def load_old(path: Path) -> dict[str, Any]:
    """results.json of an earlier run."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--compare {path}: not readable: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"--compare {path}: not JSON: {error}") from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"--compare {path}: schema {schema!r}; expected results.json of spectool tune "
            f"({SCHEMA})"
        )
    return dict(found)


def compare(
    old: Mapping[str, Any], path: Path, choices: Sequence[Choice], cells: Sequence[Cell],
    settings: Mapping[str, Any],
) -> Comparison:  # fmt: skip
    """A gate for every domain and batch size that both runs have; a lost domain fails."""
    try:
        gates = tuple(_gates(old, choices, cells))
        notes = tuple(_notes(old["settings"], settings))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"--compare {path}: {type(error).__name__} at {error}: not as spectool tune wrote it"
        ) from None
    if not gates:
        raise InputError(
            f"--compare {path}: it has no domain and batch size in common with this run"
        )
    return Comparison(str(path), gates, notes)


def _gates(
    old: Mapping[str, Any], choices: Sequence[Choice], cells: Sequence[Cell]
) -> Iterator[Gate]:
    now = {(choice.batch_size, choice.domain): choice for choice in choices}
    batches = {choice.batch_size for choice in choices}
    lengths = {(cell.batch_size, cell.domain, cell.k): cell for cell in cells}
    for before in old["choices"]:
        place = (before["batch_size"], before["domain"])
        if place[0] not in batches:
            continue
        if place not in now:
            yield Gate(place[1], place[0], "measured", "yes", "no", passed=False)
            continue
        if before["verdict"] == "on":
            yield _speed(before, now[place])
    for cell in old["summary"]:
        found = lengths.get((cell["batch_size"], cell["domain"], cell["k"]))
        if found is not None and not found.plain and cell["acceptance_length"] is not None:
            yield _acceptance(cell, found)


def _speed(before: Mapping[str, Any], choice: Choice) -> Gate:
    """Fails where even the upper end of the new interval falls short of the old gain."""
    gain, had = choice.gain, before["speedup"]
    enough = gain is not None and gain.high >= had["value"] * (1 - SLOWER)
    still_on = choice.verdict == "on"
    return Gate(
        choice.domain,
        choice.batch_size,
        "speed-up",
        f"{had['value']:.2f}x at k = {before['k']}",
        f"{gain.value:.2f}x at k = {choice.best.k}" + ("" if still_on else f" ({choice.verdict})")
        if gain
        else choice.verdict,
        passed=enough and still_on,
    )


def _acceptance(before: Mapping[str, Any], cell: Cell) -> Gate:
    had, has = before["acceptance_length"], cell.acceptance_length
    return Gate(
        cell.domain,
        cell.batch_size,
        f"acceptance length, k = {cell.k}",
        f"{had:.2f}",
        "-" if has is None else f"{has:.2f}",
        passed=has is not None and has >= had * (1 - REFUSED),
    )


def _notes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in SAME:
        if old.get(name) != new.get(name):
            yield f"{name} was {old.get(name)} then and is {new.get(name)} now"
    if old.get("machine") != new.get("machine"):
        yield "another machine: speed-ups may differ for that reason alone"
