"""`spectool plan`: what a build would make, with digests and commands; nothing runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.commands.options import Json, Overrides, Recipes, StoreDir

if TYPE_CHECKING:
    from toolkit.plan import Artefact, Plan
    from toolkit.store import Store


def plan(
    recipe: Recipes,
    override: Overrides = None,
    store: StoreDir = None,
    digest: Annotated[
        bool, typer.Option("--digest", help="Only one digest of all that a build would make.")
    ] = False,
    graph: Annotated[
        bool,
        typer.Option("--graph", help="The steps up to a tuned recipe: what each needs and waits."),
    ] = False,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="The graph as a Mermaid flowchart.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what recipes need, with digests; run nothing."""
    from toolkit.plan import make_plan
    from toolkit.recipe.load import load_recipe
    from toolkit.store import open_store

    where = open_store(store)
    found = [make_plan(load_recipe(name, override or ()), where) for name in recipe]
    if graph or mermaid:
        print(_graph(found, where, mermaid=mermaid, as_json=as_json))
    elif digest:
        several = len(found) > 1
        print("\n".join(p.digest + (f"  {p.recipe.name}" if several else "") for p in found))
    elif as_json:
        print(as_document(found))
    else:
        print("\n\n".join(map(describe, found)))


def as_document(plans: Sequence[Plan]) -> str:
    """JSON of one plan as ever, of several as a list."""
    found = [plan.to_json() for plan in plans]
    return json.dumps(found[0] if len(found) == 1 else {"plans": found}, indent=2)


def _graph(plans: Sequence[Plan], store: Store, *, mermaid: bool, as_json: bool) -> str:
    from toolkit.commands.table import table
    from toolkit.graph import show
    from toolkit.steps import build_graph
    from toolkit.tuning_steps import with_tuning

    graph = with_tuning(build_graph(plans, store)[0], plans)
    if mermaid:
        return show.mermaid(graph)
    if as_json:
        return json.dumps(show.to_json(graph), indent=2)
    done = sum(step.done for step in graph)
    head = ("", "step", "state", "needs", "after")
    return f"{table(show.rows(graph), head)}\n{len(graph)} steps, {done} done"


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
