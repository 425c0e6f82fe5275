"""The recipe as JSON Schema: the sections from the models, `speculation` from every drafter.

A recipe that extends another may leave out anything, so nothing inside a section is required here;
`spectool check` knows the whole recipe and says what is missing.
"""

from __future__ import annotations

from typing import Any

from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS


def recipe_schema() -> dict[str, Any]:
    """Draft 2020-12, for editors."""
    schema = Recipe.model_json_schema()
    definitions: dict[str, Any] = schema.pop("$defs")
    definitions.pop("Speculation", None)
    # A child of another recipe may keep its base's drafter by not naming one.
    choices: list[dict[str, Any]] = [{"type": "object", "not": {"required": ["drafter"]}}]
    for name in DRAFTERS:
        options = DRAFTERS[name].Options.model_json_schema()
        definitions.update(options.pop("$defs", {}))
        definitions[f"speculation_{name}"] = options
        choices.append({"$ref": f"#/$defs/speculation_{name}"})
    for definition in definitions.values():
        definition.pop("required", None)
    for name in DRAFTERS:
        definitions[f"speculation_{name}"]["properties"]["drafter"] = {"const": name}
        definitions[f"speculation_{name}"]["required"] = ["drafter"]
    schema["properties"]["speculation"] = {"oneOf": choices}
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "Another recipe (path from this file, or bundled name) to start from.",
    }
    whole = {"required": schema.pop("required")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "anyOf": [{"required": ["extends"]}, whole],
        "$defs": definitions,
    }
