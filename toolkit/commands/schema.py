"""`spectool schema`: recipes and results as JSON Schema, for editors and pipelines."""

from __future__ import annotations

import json
from typing import Annotated

import typer

OF = ("recipe", "results")


def schema(
    of: Annotated[
        str, typer.Argument(metavar="[recipe|results]", help="What to describe.")
    ] = "recipe",
) -> None:
    """Print the JSON Schema of recipes, or of tune's results.json."""
    from toolkit.errors import InputError, did_you_mean
    from toolkit.recipe.json_schema import recipe_schema
    from toolkit.tuning.result_schema import result_schema

    if of not in OF:
        raise InputError(f"schema {of}: allowed are {' and '.join(OF)}{did_you_mean(of, OF)}")
    print(json.dumps(recipe_schema() if of == "recipe" else result_schema(), indent=2))
