"""`spectool plan`: what a build would make, with digests and commands; nothing runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.commands.options import Json, Overrides, RecipeArgument, StoreDir

if TYPE_CHECKING:
    from toolkit.plan import Artefact, Plan


def plan(
    recipe: RecipeArgument,
    override: Overrides = None,
    store: StoreDir = None,
    digest: Annotated[
        bool, typer.Option("--digest", help="Only one digest of all that a build would make.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what a recipe needs, with digests; run nothing."""
    from toolkit.plan import make_plan
    from toolkit.recipe.load import load_recipe
    from toolkit.store import Store

    found = make_plan(load_recipe(recipe, override or ()), Store(store))
    if digest:
        print(found.digest)
        return
    print(json.dumps(found.to_json(), indent=2) if as_json else describe(found))


def describe(found: Plan) -> str:
    """One line an artefact, and below it the commands of those that are not there yet."""
    from toolkit.commands.table import table

    rows = [
        [a.kind, a.role, a.digest or _when_known(a), "cached" if a.cached else "to make"]
        for a in found.artefacts
    ]
    said = dict.fromkeys(
        note for artefact in found.artefacts for note in (*artefact.notes, *artefact.near_misses)
    )
    notes = [f"note: {note}" for note in said]
    missing = [artefact.command for artefact in found.artefacts if not artefact.cached]
    steps = "\n".join(["", "steps:", *(f"  {command}" for command in missing)]) if missing else ""
    return "\n".join([table(rows, ("kind", "role", "digest", "state")) + steps, *notes])


def _when_known(artefact: Artefact) -> str:
    """An engine whose checkpoint is known waits for the machine that builds it."""
    return "known where it is built" if artefact.inputs else "known once fetched"
