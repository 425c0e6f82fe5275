"""`spectool build`: make what a recipe needs and the store lacks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.options import (
    Json,
    Offline,
    On,
    Overrides,
    Recipes,
    RequireSignature,
    StoreDir,
    offline_or_environment,
)

if TYPE_CHECKING:
    from toolkit.commands.changed import Compared
    from toolkit.engine.built import BuiltModels
    from toolkit.execute import Made
    from toolkit.graph.run import Ran
    from toolkit.plan import Artefact, Plan
    from toolkit.store import Store


def build(
    recipe: Recipes,
    override: Overrides = None,
    store: StoreDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be made.")
    ] = False,
    require_cached: Annotated[
        bool, typer.Option("--require-cached", help="Fail when anything would have to be made.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--changed-since",
            metavar="REV",
            help="Only the recipes that built something else at this git revision; with --dry-run "
            "list them.",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=64, help="Artefacts made side by side.")
    ] = 1,
    on: On = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Also report to a CI system.")
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option("--summary", metavar="FILE", help="Also add a Markdown table to this file."),
    ] = None,
    require_signature: RequireSignature = False,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Convert weights and build engines, what is missing.

    What several recipes have in common is made once.
    """
    from toolkit.commands.build_summary import write_summary
    from toolkit.commands.changed import changed_since
    from toolkit.commands.junit import write_junit
    from toolkit.commands.plan import as_document, describe
    from toolkit.commands.used import recipe_names
    from toolkit.errors import SpectoolError
    from toolkit.execute import build_all
    from toolkit.plan import make_plan
    from toolkit.recipe.load import load_recipe
    from toolkit.store import open_store

    where = open_store(store, require_signature=require_signature)
    names = recipe_names(recipe)
    plans = [make_plan(load_recipe(name, override or ()), where) for name in names]
    if since is not None:
        found = changed_since(since, list(zip(names, plans, strict=True)), override or (), where)
        plans = [one.plan for one in found if one.why]
        if dry_run or not plans:
            _say_changed(found, since, as_json)
            return
    if dry_run:
        print(as_document(plans) if as_json else "\n\n".join(map(describe, plans)))
        return
    done: list[Made] = []
    said: set[str] = set()
    if not require_cached:  # its error says them
        _say_near_misses([artefact for plan in plans for artefact in plan.artefacts], said)

    def report(made: Made) -> None:
        done.append(made)
        _say_near_misses([made.artefact], said)
        if not as_json:
            print(_line(made), flush=True)

    error: str | None = None
    try:
        if require_cached:
            _refuse_to_make(plans)
        away = offline_or_environment(offline)
        if on is None:
            built = build_all(plans, where, offline=away, jobs=jobs, report=report)
        else:
            built = _build_on(on, jobs, plans, where, away, report)
    except SpectoolError as failure:
        error = str(failure)
        raise
    finally:
        if junit:
            write_junit(junit, plans, done, error)
        if summary:
            write_summary(summary, plans, done, error)
    if as_json:
        print(json.dumps({**_built(built), "artefacts": [*map(_row, done)]}))


def _build_on(
    on: str,
    jobs: int,
    plans: Sequence[Plan],
    store: Store,
    offline: bool | None,
    report: Callable[[Made], None],
) -> list[BuiltModels]:
    from toolkit.errors import InputError
    from toolkit.on_cluster import build_on

    if jobs > 1:
        raise InputError(f"--jobs {jobs} is for this machine; with --on the nodes say how many")
    return build_on(
        on,
        plans,
        store,
        offline=offline,
        report=report,
        log=lambda line: typer.echo(line, err=True),
    )


def _say_changed(found: Sequence[Compared], since: str, as_json: bool) -> None:
    """Which recipes are affected, and why."""
    changed = [one for one in found if one.why]
    if as_json:
        same = [one.name for one in found if not one.why]
        document = {"since": since, "affected": [c.to_json() for c in changed], "unaffected": same}
        print(json.dumps(document, indent=2))
        return
    for one in changed:
        print(f"{one.name}: {one.why}")
    print(f"{len(changed)} of {len(found)} recipe(s) affected since {since}")


def _built(models: Sequence[BuiltModels]) -> dict[str, Any]:
    """Of one recipe as ever; of several a list."""
    documents = [json.loads(found.to_json()) for found in models]
    return documents[0] if len(documents) == 1 else {"recipes": documents}


def _refuse_to_make(plans: Sequence[Plan]) -> None:
    from toolkit.errors import RunError
    from toolkit.steps import common

    missing = [artefact for artefact in common(plans) if not artefact.cached]
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
    from toolkit.graph.local import HERE

    state = "cached" if made.entry.cached else f"built in {made.seconds:.1f} s"
    kind, place = made.artefact.kind.removesuffix("s"), str(made.entry.path)
    if made.ran and made.ran.node != HERE:
        place += f"  ({made.ran.node})"
    return f"{kind:<11}{made.artefact.role:<13}{state:<18}{size(made.bytes):>9}  {place}"


def _row(made: Made) -> dict[str, Any]:
    return {
        "kind": made.artefact.kind,
        "roles": list(made.artefact.roles),
        "digest": made.entry.digest,
        "path": str(made.entry.path),
        "cached": made.entry.cached,
        "seconds": round(made.seconds, 3),
        "bytes": made.bytes,
        **(_when(made.ran) if made.ran else {}),
    }


def _when(ran: Ran) -> dict[str, Any]:
    """From sending the step to hearing of its end, in seconds since the first was sent."""
    return {"node": ran.node, "start": round(ran.start, 3), "end": round(ran.end, 3)}
