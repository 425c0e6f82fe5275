"""`spectool repo`: the Triton model repository of a recipe."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import (
    Json,
    Offline,
    Overrides,
    RecipeArgument,
    StoreDir,
    offline_or_environment,
)


def repo(
    recipe: RecipeArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write it.")],
    override: Overrides = None,
    copy_engines: Annotated[
        bool,
        typer.Option(
            "--copy-engines", help="Put engines and tokenizers inside, to be moved elsewhere."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a repository that was edited by hand.")
    ] = False,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            metavar="ROLE=DIR",
            help="Use this engine; with every role, nothing is built.",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="DIR", help="With --engine: the target's tokenizer."),
    ] = None,
    store: StoreDir = None,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Write the Triton model repository; build what is missing."""
    from toolkit.execute import build
    from toolkit.plan import make_plan
    from toolkit.recipe.load import load_recipe
    from toolkit.serving.given import given_models
    from toolkit.serving.layouts import layout_of
    from toolkit.serving.lint import lint, raise_errors
    from toolkit.serving.repository import (
        check_replaceable,
        repository_manifest,
        write_repository,
    )
    from toolkit.store import open_store

    check_replaceable(out, force)  # now, not after minutes of building
    where = open_store(store)
    loaded = load_recipe(recipe, override or ())
    if engine or tokenizer:
        built = given_models(loaded, engine or (), tokenizer)
    else:
        plan = make_plan(loaded, where)
        built = build(plan, where, offline=offline_or_environment(offline))
    written = write_repository(built, out, copy_engines=copy_engines, force=force)
    raise_errors(written, lint(written))
    manifest = repository_manifest(written) or {}
    models = list(manifest["models"])
    layout = layout_of(built.recipe)
    programs = [str(written / name) for name in layout.programs(built)]
    notes = layout.notes(built)
    if as_json:
        found = {"repository": str(written), "models": models, "entry": manifest["entry"]}
        if programs:
            found |= {"launch": programs[0], "notes": notes}
        print(json.dumps(found))
        return
    print(f"{written}: layout {manifest['layout']}, models {', '.join(models)}")
    for note in notes:
        print(note)
    if programs:
        command = (written / programs[0]).read_text(encoding="utf-8").partition("exec ")[2]
        print(f"{command}next: {shlex.quote(programs[0])} where Triton has {layout.needs}")
    else:
        print(f"next: spectool serve {shlex.quote(str(out))}")
