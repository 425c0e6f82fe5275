"""`spectool migrate`: a recipe for engines, or for another release, on the PyTorch backend."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.commands.options import Json, Overrides, RecipeArgument

if TYPE_CHECKING:
    from toolkit.migrate import Migration


def migrate(
    recipe: RecipeArgument,
    to: Annotated[str, typer.Option("--to", metavar="BACKEND", help="pytorch.")] = "pytorch",
    version: Annotated[
        str | None,
        typer.Option(
            "--version", metavar="RELEASE", help="Of TensorRT-LLM; default: the recipe's."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to a new file.")
    ] = None,
    override: Overrides = None,
    as_json: Json = False,
) -> None:
    """Write the recipe for another backend or release; say what became of each field."""
    from toolkit.commands.write_new import write_new
    from toolkit.errors import UnknownNameError
    from toolkit.migrate import BACKEND
    from toolkit.migrate import migrate as migrated
    from toolkit.recipe.load import dump_recipe, load_recipe

    if to != BACKEND:
        raise UnknownNameError("backend to migrate to", to, [BACKEND])
    found = migrated(load_recipe(recipe, override or ()), version)
    text = _header(recipe, found) + dump_recipe(found.recipe)
    if output:
        write_new(output, text)
    if as_json:
        print(json.dumps({**found.to_json(), "yaml": text}, indent=2))
        return
    print(describe(found), file=sys.stdout if output else sys.stderr)
    print(f"{output} written; try: spectool check {output}\n" if output else text, end="")


def describe(found: Migration) -> str:
    """One line a field, then what the release does without a word."""
    from toolkit.commands.table import table

    rows = [[change.kind, change.field, change.text] for change in found.changes]
    notes = [f"note: {note}" for note in found.notes]
    return "\n".join([table(rows, ("what", "field", "how")), *notes])


def _header(name: str, found: Migration) -> str:
    """Comments that say where the recipe came from and what it lost on the way."""
    said = [
        f"Migrated from {name} to TensorRT-LLM {found.recipe.tensorrt_llm}'s PyTorch backend.",
        *(f"{c.kind}: {c.field}: {c.text}" for c in found.changes if c.kind != "kept"),
    ]
    return "".join(f"# {line}\n" for text in said for line in text.splitlines())
