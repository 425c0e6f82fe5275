"""One model named on the command line, checked by the same schema as in a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolkit.errors import RecipeError
from toolkit.recipe.explain import message
from toolkit.recipe.paths import resolve_checkpoint
from toolkit.recipe.schema import ModelSpec, expand_range
from toolkit.recipe.yaml_lines import dotted


def _in_order(text: str) -> tuple[Any, ...]:
    """`29,0..2` as 29, 0, 1, 2: layers are used in the order in which they are named."""
    return tuple(number for part in text.split(",") for number in expand_range(part))


def model_from_words(checkpoint: str, words: Mapping[str, Any]) -> ModelSpec:
    """`{"parallel.tp": 2, "layers": "0..3,29"}` beside a checkpoint as a `ModelSpec`."""
    data: dict[str, Any] = {"checkpoint": resolve_checkpoint(checkpoint, Path.cwd())}
    problems = []
    for key, value in words.items():
        section, _, name = key.rpartition(".")
        holder = data.setdefault(section, {}) if section else data
        try:
            holder[name] = _in_order(value) if key == "layers" else value
        except ValueError as error:
            problems.append(f"{key}: {error}")
    try:
        model = ModelSpec.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems += [f"{dotted(tuple(item['loc']))}: {message(item)}" for item in details]
    if problems:
        raise RecipeError(checkpoint, problems)
    return model
