"""Layers of one recipe: what it extends, its own words, and `--set`; later layers win."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolkit.recipe.paths import resolve_paths
from toolkit.recipe.yaml_lines import Document, KeyPath, Problem, Where, parse_value

_SPECULATION: KeyPath = ("speculation",)


def merge(base: Document, child: Document) -> Document:
    """Mappings merge key by key, anything else is replaced.

    A child that names another drafter replaces the whole `speculation` section: options of one
    drafter, and lengths chosen for it, mean nothing to the next.
    """
    where = dict(base.where)

    def overlay(below: dict[str, Any], above: dict[str, Any], path: KeyPath) -> dict[str, Any]:
        found = dict(below)
        for key, value in above.items():
            here = (*path, key)
            old = found.get(key)
            if (
                isinstance(old, dict)
                and isinstance(value, dict)
                and not _switches(here, old, value)
            ):
                found[key] = overlay(old, value, here)
            else:
                _forget(where, here)
                found[key] = value
        return found

    data = overlay(base.data, child.data, ())
    return Document(data, {**where, **child.where}, [*base.problems, *child.problems])


def _switches(path: KeyPath, old: dict[str, Any], new: dict[str, Any]) -> bool:
    return path == _SPECULATION and new.get("drafter", old.get("drafter")) != old.get("drafter")


def _forget(where: dict[KeyPath, Where], path: KeyPath) -> None:
    for known in [known for known in where if known[: len(path)] == path]:
        del where[known]


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """`key.path=value` in order, each value read as YAML and put in place of what was there."""
    parsed: list[tuple[tuple[str, ...], Any, Where]] = []
    problems = list(document.problems)
    for number, text in enumerate(overrides):
        key, equals, raw = text.partition("=")
        path = tuple(part.strip() for part in key.split("."))
        place = Where(Where.SET, number, "--set")
        if not equals or not all(path):
            shown = text if len(text) <= 60 else text[:57] + "..."
            problems.append(Problem((shown,), "write it as key.path=value", place))
            continue
        try:
            parsed.append((path, parse_value(raw), place))
        except ValueError as error:
            problems.append(Problem(path, str(error), place))
    found = Document(dict(document.data), dict(document.where), problems)
    _switch_drafter(found, parsed)
    for path, value, place in parsed:
        _put(found, path, value, place)
    return found


def _switch_drafter(
    document: Document, parsed: Sequence[tuple[tuple[str, ...], Any, Where]]
) -> None:
    """The rule of `merge` for `--set speculation.drafter=...`, in whatever order it comes."""
    names = [value for path, value, _ in parsed if path == (*_SPECULATION, "drafter")]
    old = document.data.get("speculation")
    if names and isinstance(old, dict) and names[-1] != old.get("drafter"):
        _forget(document.where, _SPECULATION)
        document.data["speculation"] = {}


def _put(document: Document, path: tuple[str, ...], value: Any, here: Where) -> None:
    holder = document.data
    for depth, part in enumerate(path[:-1], start=1):
        below = {} if holder.get(part) is None else holder[part]  # null: the section was left out
        if not isinstance(below, dict):
            text = f"{'.'.join(path[:depth])} is a single value or a list, it has no keys"
            document.problems.append(Problem(path, text, here))
            return
        holder[part] = dict(below)  # layers below stay as they are
        holder = holder[part]
    holder[path[-1]] = _resolved(path, value)
    _forget(document.where, path)
    document.where[path] = here


def _resolved(path: tuple[str, ...], value: Any) -> Any:
    """The value with its paths taken from the current directory, like any command line's."""
    nested = value
    for part in reversed(path):
        nested = {part: nested}
    nested = resolve_paths(nested, Path.cwd())
    for part in path:
        nested = nested[part]
    return nested
