"""`spectool build`: make what a recipe needs and the store lacks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.options import (
    Json,
    Offline,
    Overrides,
    RecipeArgument,
    StoreDir,
    offline_or_environment,
)

if TYPE_CHECKING:
    from toolkit.execute import Made


def build(
    recipe: RecipeArgument,
    override: Overrides = None,
    store: StoreDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be made.")
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=64, help="Artefacts made side by side.")
    ] = 1,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Convert weights and build engines, what is missing."""
    from toolkit.commands.plan import describe
    from toolkit.execute import build as build_plan
    from toolkit.plan import make_plan
    from toolkit.recipe.load import load_recipe
    from toolkit.store import Store

    where = Store(store)
    plan = make_plan(load_recipe(recipe, override or ()), where)
    if dry_run:
        print(json.dumps(plan.to_json(), indent=2) if as_json else describe(plan))
        return
    done: list[Made] = []

    def report(made: Made) -> None:
        done.append(made)
        if not as_json:
            print(_line(made), flush=True)

    built = build_plan(
        plan, where, offline=offline_or_environment(offline), jobs=jobs, report=report
    )
    if as_json:
        print(json.dumps({**json.loads(built.to_json()), "artefacts": [*map(_row, done)]}))


def _line(made: Made) -> str:
    from toolkit.commands.table import size

    state = "cached" if made.entry.cached else f"built in {made.seconds:.1f} s"
    kind = made.artefact.kind.removesuffix("s")
    return f"{kind:<11}{made.artefact.role:<13}{state:<18}{size(made.bytes):>9}  {made.entry.path}"


def _row(made: Made) -> dict[str, Any]:
    return {
        "kind": made.artefact.kind,
        "roles": list(made.artefact.roles),
        "digest": made.entry.digest,
        "path": str(made.entry.path),
        "cached": made.entry.cached,
        "seconds": round(made.seconds, 3),
        "bytes": made.bytes,
    }
