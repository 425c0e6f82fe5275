"""A recipe as nested values, and what became of its fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.recipe.schema import Recipe
from toolkit.speculation.migration import Change, Kind


@dataclass
class Data:
    """The recipe on its way."""

    values: dict[str, Any]
    changes: list[Change] = field(default_factory=list)

    def get(self, path: str) -> Any:
        """The value at a dotted path; None where nothing is."""
        value: Any = self.values
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def put(self, path: str, value: Any) -> None:
        *parents, last = path.split(".")
        section = self.values
        for key in parents:
            section = section.setdefault(key, {})
        section[last] = value

    def reset(self, path: str) -> None:
        """Forget a value, so that its default holds again."""
        *parents, last = path.split(".")
        section: Any = self.values
        for key in parents:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(last, None)

    def say(self, path: str, kind: Kind, text: str) -> None:
        self.changes.append(Change(path, kind, text))


def kept(source: Recipe, found: Recipe, said: set[str]) -> Iterator[Change]:
    """A line for every field that was written and of which nothing else is said."""
    written = dict(leaves(source.model_dump(mode="json", exclude_unset=True)))
    now = dict(leaves(found.model_dump(mode="json")))
    for path, value in written.items():
        if any(path == other or path.startswith(f"{other}.") for other in said):
            continue
        if path in now and now[path] == value:
            yield Change(path, "kept", shown(value))
        else:
            yield Change(path, "changed", f"{shown(value)} -> {shown(now.get(path))}")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of everything that is not a non-empty mapping."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def shown(value: Any) -> str:
    """A value in one line."""
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
