"""Engines that would be the one needed, had another machine or release not built them.

They have other digests, so nothing reuses them by mistake; this is for saying why one that is there
is not used.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class NearMiss:
    """An artefact with the same inputs and flags, and what of it does not fit here."""

    path: Path
    differences: Mapping[str, tuple[Any, Any]]  # name -> found, needed

    def __str__(self) -> str:
        return f"{self.path} is not reused: {said(self.differences)}"


def near_misses(
    entries: Iterable[Mapping[str, Any]], spec: Mapping[str, Any], machine: Collection[str]
) -> list[NearMiss]:
    """Those of `entries` (manifests with `path`) whose spec differs in keys of `machine` alone.

    The nearest come first. An entry that differs in nothing is the artefact itself.
    """
    wanted = json.loads(json.dumps(spec))
    found = []
    for entry in entries:
        other = entry["spec"]
        if not isinstance(other, dict) or _rest(other, machine) != _rest(wanted, machine):
            continue
        if changed := differences(other, {name: wanted.get(name) for name in machine}):
            found.append(NearMiss(Path(entry["path"]), changed))
    return sorted(found, key=lambda miss: len(miss.differences))


def differences(found: Mapping[str, Any], needed: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Name -> (found, needed) where the two are not the same."""
    return {
        name: (found.get(name), value) for name, value in needed.items() if found.get(name) != value
    }


def said(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Each difference as `name found -> needed`."""
    pairs = (f"{name} {_word(a)} -> {_word(b)}" for name, (a, b) in changes.items())
    return f"{', '.join(pairs)} (found -> needed)"


def _rest(spec: Mapping[str, Any], machine: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in machine}


def _word(value: Any) -> str:
    return "unknown" if value is None else str(value)
