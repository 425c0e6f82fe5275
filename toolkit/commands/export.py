"""`spectool export`: the recipe's decision as another server's command line or program."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import Json, Overrides, RecipeArgument


def complete_peer(incomplete: str) -> list[str]:
    from toolkit.export import PEERS

    return [name for name in PEERS if name.startswith(incomplete)]


def export(
    recipe: RecipeArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="SERVER",
            help="vllm, sglang, tgi, llama.cpp or openvino.",
            autocompletion=complete_peer,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to a new file.")
    ] = None,
    override: Overrides = None,
    as_json: Json = False,
) -> None:
    """Say the same decision to another server; what it cannot say is said on stderr."""
    from toolkit.commands.write_new import write_new
    from toolkit.export import PEERS
    from toolkit.recipe.load import load_recipe

    peer = PEERS[to]
    found = peer.export(load_recipe(recipe, override or ()))
    if output:
        write_new(output, found.text)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        for note in found.notes:
            print(f"note: {note}", file=sys.stderr)
        print(f"{output} written" if output else found.text, end="\n" if output else "")
