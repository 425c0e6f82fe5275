"""Engines in the store that only another machine or release could use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from toolkit.engine.near_miss import near_misses
from toolkit.errors import SpectoolError
from toolkit.plan import make_plan
from toolkit.preflight.report import Finding
from toolkit.recipe.schema import Recipe
from toolkit.registry import BACKENDS
from toolkit.store import Store


def check(recipe: Recipe, store: Store) -> Iterator[Finding]:
    """Why an engine that is there will be built again."""
    with suppress(SpectoolError):  # what keeps a plan from being made is said by other checks
        if not _any_from_elsewhere(recipe, store):
            return
        for artefact in make_plan(recipe, store).artefacts:
            for text in artefact.near_misses:
                yield Finding(f"{artefact.role} engine", text, "note")


def _any_from_elsewhere(recipe: Recipe, store: Store) -> bool:
    """Whether a plan could find some: it hashes every weight, which a check does not otherwise."""
    backend = BACKENDS[recipe.backend]
    machine = set(backend.machine())
    entries = [entry for entry in store.entries() if entry["kind"] == "engines"]
    for role in recipe.models():
        spec = backend.engine_spec("", recipe, role) if machine and entries else None
        if spec is None:
            continue
        found = near_misses(entries, {"kind": "engines", **spec}, machine | {"checkpoint"})
        if any(machine & miss.differences.keys() for miss in found):
            return True
    return False
