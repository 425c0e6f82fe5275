"""`spectool convert`: TensorRT-LLM checkpoints in a directory of the user's choice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import Offline, Overrides, StoreDir, offline_or_environment


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Checkpoint (directory, .gguf, pip:NAME==VERSION, hub id), or a recipe: "
            "then all of its models, as DIR/checkpoints/ROLE and DIR/tokenizers/ROLE.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="A directory not there yet.")
    ],
    dtype: Annotated[str | None, typer.Option(help="float32, float16 or bfloat16.")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel size.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline-parallel size.")] = None,
    layers: Annotated[
        str | None, typer.Option(metavar="0,1,2..5", help="Only these decoder layers.")
    ] = None,
    quantization: Annotated[str | None, typer.Option(help="w8a16: int8 weights.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    tokenizer_only: Annotated[
        bool, typer.Option("--tokenizer-only", help="Write the tokenizer's files instead.")
    ] = False,
    override: Overrides = None,
    store: StoreDir = None,
    offline: Offline = False,
) -> None:
    """Convert a checkpoint to TensorRT-LLM's layout."""
    from toolkit.execute import convert_model, convert_recipe
    from toolkit.recipe.load import load_recipe, names_recipe
    from toolkit.recipe.model import model_from_words
    from toolkit.store import open_store

    words = {
        "dtype": dtype,
        "parallel.tp": tp,
        "parallel.pp": pp,
        "layers": layers,
        "quantization": quantization,
        "revision": revision,
    }
    given = {key: value for key, value in words.items() if value is not None}
    where, off = open_store(store), offline_or_environment(offline)
    if names_recipe(source):
        _only_for_checkpoints([*given, *(["tokenizer-only"] if tokenizer_only else [])])
        convert_recipe(load_recipe(source, override or ()), out, where, offline=off)
    else:
        model = model_from_words(source, given)
        convert_model(model, out, where, offline=off, tokenizer_only=tokenizer_only)
    print(out)


def _only_for_checkpoints(given: list[str]) -> None:
    from toolkit.errors import InputError

    if given:
        names = ", ".join(f"--{key.rpartition('.')[2]}" for key in given)
        raise InputError(f"{names}: for a checkpoint; with a recipe, use --set target.KEY=VALUE")
