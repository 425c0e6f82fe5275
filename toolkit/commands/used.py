"""Which artefacts recipes use: for pruning the others, and for fetching or sharing these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.engine.near_miss import near_misses
from toolkit.errors import InputError, SpectoolError

if TYPE_CHECKING:
    from toolkit.plan import Plan
    from toolkit.store import Store

Entry = Mapping[str, Any]


def recipe_names(words: Sequence[str]) -> list[str]:
    """Recipe files, names of bundled ones, and for a directory every recipe below it."""
    names: list[str] = []
    for word in words:
        if not Path(word).is_dir():
            names.append(word)
            continue
        found = sorted(map(str, (*Path(word).rglob("*.yaml"), *Path(word).rglob("*.yml"))))
        if not found:
            raise InputError(f"{word}: no recipe (*.yaml) in this directory")
        names += found
    return names


def plans_of(names: Sequence[str], store: Store) -> list[tuple[str, Plan]]:
    """The plan of every recipe, or the problems of all of them at once."""
    from toolkit.plan import make_plan
    from toolkit.recipe.load import load_recipe

    found, problems = [], []
    for name in names:
        try:
            found.append((name, make_plan(load_recipe(name), store)))
        except SpectoolError as error:
            problems.append(str(error))
    if problems:
        raise InputError("\n".join(problems))
    return found


def used_by(words: Sequence[str], store: Store) -> Callable[[Entry], bool]:
    """Whether a recipe uses an entry: its own artefact, or its engine as another machine built it.

    A machine without the GPU cannot tell an engine's digest: then every engine of the recipe's
    checkpoints counts. When even a checkpoint's digest is not known, nothing can be decided.
    """
    from toolkit.registry import BACKENDS

    exact: set[tuple[str, str]] = set()
    engines: list[tuple[dict[str, Any], Collection[str]]] = []
    checkpoints: set[str] = set()
    unknown: dict[str, None] = {}
    for name, plan in plans_of(recipe_names(words), store):
        machine = BACKENDS[plan.recipe.backend].machine()
        for artefact in plan.artefacts:
            if artefact.digest and artefact.spec:
                exact.add((artefact.kind, artefact.digest))
                if artefact.kind == "engines":
                    engines.append((artefact.spec, machine))
            elif artefact.kind == "engines" and artefact.inputs:
                checkpoints.update(artefact.inputs)
            else:
                unknown[f"  {name}: {artefact.kind} of {artefact.role}"] = None
    if unknown:
        raise InputError(
            "\n".join(
                (
                    "cannot tell what is used, so nothing was removed; not known here:",
                    *unknown,
                    "  pin the weights with `revision`, or fetch them with spectool build",
                )
            )
        )

    def used(entry: Entry) -> bool:
        if (entry["kind"], entry["digest"]) in exact:
            return True
        if entry["kind"] != "engines":
            return False
        spec = entry["spec"]
        return spec.get("checkpoint") in checkpoints or any(
            near_misses([entry], mine, machine) for mine, machine in engines
        )

    return used
