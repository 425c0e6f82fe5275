"""Whether the engines of a repository were built for this machine; asked where it is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.engine.near_miss import differences, said
from toolkit.errors import InputError
from toolkit.registry import BACKENDS
from toolkit.serving.lint.artefacts import engines_of
from toolkit.serving.lint.repository import Finding, read_repository
from toolkit.store import read_manifest


def check_machine(directory: Path) -> Iterator[Finding]:
    """An error for each engine that another machine or release built."""
    repository, _ = read_repository(directory)
    recipe = (repository.manifest or {}).get("recipe") or {}
    backend = str(recipe.get("backend"))
    if backend not in BACKENDS:
        return
    here = {name: value for name, value in BACKENDS[backend].machine().items() if value is not None}
    for model in repository.parsed:
        for parameter, role, path in engines_of(model):
            spec = _spec(path)
            # Only what its builder recorded can be compared.
            known = {name: value for name, value in here.items() if name in spec}
            if changed := differences(spec, known):
                yield model.error(
                    f"parameter {parameter!r}: the {role} engine {path} does not fit this machine: "
                    f"{said(changed)}; run spectool build and spectool repo here",
                    parameter,
                )


def _spec(engine_dir: Path) -> dict[str, Any]:
    """What the engine's digest was taken over; nothing for one from elsewhere."""
    try:
        found = read_manifest(engine_dir).get("spec")
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}
