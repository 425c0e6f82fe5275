"""`spectool build`: make what a recipe needs and the store lacks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
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
    from toolkit.plan import Artefact, Plan


def build(
    recipe: RecipeArgument,
    override: Overrides = None,
    store: StoreDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be made.")
    ] = False,
    require_cached: Annotated[
        bool, typer.Option("--require-cached", help="Fail when anything would have to be made.")
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=64, help="Artefacts made side by side.")
    ] = 1,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Also report to a CI system.")
    ] = None,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Convert weights and build engines, what is missing."""
    from toolkit.commands.junit import write_junit
    from toolkit.commands.plan import describe
    from toolkit.errors import SpectoolError
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
    said: set[str] = set()
    if not require_cached:  # its error says them
        _say_near_misses(plan.artefacts, said)

    def report(made: Made) -> None:
        done.append(made)
        _say_near_misses([made.artefact], said)
        if not as_json:
            print(_line(made), flush=True)

    error: str | None = None
    try:
        if require_cached:
            _refuse_to_make(plan)
        built = build_plan(
            plan, where, offline=offline_or_environment(offline), jobs=jobs, report=report
        )
    except SpectoolError as failure:
        error = str(failure)
        raise
    finally:
        if junit:
            write_junit(junit, plan, done, error)
    if as_json:
        print(json.dumps({**json.loads(built.to_json()), "artefacts": [*map(_row, done)]}))


def _refuse_to_make(plan: Plan) -> None:
    from toolkit.errors import RunError

    missing = [artefact for artefact in plan.artefacts if not artefact.cached]
    if missing:
        lines = "\n".join(
            "\n    ".join(
                (
                    f"  {a.kind.removesuffix('s')} {a.role}: {a.digest or 'digest not known here'}",
                    *a.near_misses,
                )
            )
            for a in missing
        )
        raise RunError(f"{len(missing)} artefact(s) are not in the store\n{lines}")


def _say_near_misses(artefacts: Sequence[Artefact], said: set[str]) -> None:
    """Why an engine is built although there is one; some are known only after fetching."""
    for artefact in artefacts:
        for text in artefact.near_misses:
            if text not in said:
                said.add(text)
                print(f"note: {artefact.role} engine: {text}", file=sys.stderr, flush=True)


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
