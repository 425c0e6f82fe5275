"""The recipe as JSON Schema: the sections from the models, `speculation` from every drafter."""

from __future__ import annotations

from typing import Any

from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS


def recipe_schema() -> dict[str, Any]:
    """Draft 2020-12; a recipe that extends another may leave out what the other one says."""
    schema = Recipe.model_json_schema()
    definitions: dict[str, Any] = schema.setdefault("$defs", {})
    definitions.pop("Speculation", None)
    choices = []
    for name in DRAFTERS:
        options = DRAFTERS[name].Options.model_json_schema()
        definitions.update(options.pop("$defs", {}))
        options["properties"]["drafter"] = {"const": name}
        options["required"] = sorted({*options.get("required", ()), "drafter"})
        definitions[f"speculation_{name}"] = options
        choices.append({"$ref": f"#/$defs/speculation_{name}"})
    schema["properties"]["speculation"] = {"oneOf": choices}
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "Another recipe (path from this file, or bundled name) to start from.",
    }
    required = schema.pop("required")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "anyOf": [{"required": ["extends"]}, {"required": required}],
    }
