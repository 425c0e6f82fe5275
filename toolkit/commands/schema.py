"""`spectool schema`: the recipe as JSON Schema, for editors that complete and check YAML."""

from __future__ import annotations

import json


def schema() -> None:
    """Print the JSON Schema of recipes."""
    from toolkit.recipe.json_schema import recipe_schema

    print(json.dumps(recipe_schema(), indent=2))
