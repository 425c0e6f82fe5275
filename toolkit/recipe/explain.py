"""Validation errors in a user's words: what was found, what is allowed, what was meant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from toolkit.errors import did_you_mean
from toolkit.recipe.other_words import OTHER_WORDS
from toolkit.recipe.schema import Recipe
from toolkit.recipe.yaml_lines import KeyPath, Problem, Where
from toolkit.registry import DRAFTERS

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUND = {
    "greater_than_equal": "must be at least {ge}, got {input}",
    "greater_than": "must be above {gt}, got {input}",
    "less_than_equal": "must be at most {le}, got {input}",
    "less_than": "must be below {lt}, got {input}",
    "too_short": "needs at least {min_length} value(s), got {actual_length}",
    "too_long": "takes at most {max_length} value(s), got {actual_length}",
    "string_too_short": "must not be empty",
    "string_too_long": "must not be longer than {max_length} characters",
    "finite_number": "must be a finite number, got {input}",
}


def explain(
    error: ValidationError, data: Mapping[str, Any], where: Mapping[KeyPath, Where]
) -> list[Problem]:
    """One problem for each error, placed where the value (or what should hold it) was written."""
    return [
        Problem(path, _text(detail, path, data), place(path, where))
        for detail in error.errors(include_url=False)
        for path in [tuple(detail["loc"])]
    ]


def place(path: KeyPath, where: Mapping[KeyPath, Where]) -> Where | None:
    """Where `path` was written, or else the nearest section around it."""
    for end in range(len(path), -1, -1):
        if path[:end] in where:
            return where[path[:end]]
    return None


def shown(value: Any) -> str:
    """A value as it would stand in the recipe, cut to a line."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list, tuple)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _text(detail: ErrorDetails, path: KeyPath, data: Mapping[str, Any]) -> str:
    if detail["type"] == "extra_forbidden":
        if said := OTHER_WORDS.get(str(path[-1])):
            return f"unknown key; a recipe says it in {said}"
        known = keys_at(path[:-1], data)
        hint = did_you_mean(str(path[-1]), known)
        return "unknown key" + (hint or f" (known: {', '.join(known)})")
    return message(detail)


def message(detail: ErrorDetails) -> str:
    """What is wrong with one value: what was found and what is allowed."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "missing":
        return "required"
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", context["expected"])
        return f"{shown(value)} is not one of {', '.join(allowed)}" + did_you_mean(
            str(value), allowed
        )
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return f"{shown(value)} does not match {context['pattern']}"
    if kind in _EXPECTED:
        quotes = "; put it in quotes" if kind == "string_type" and _is_scalar(value) else ""
        return f"expected {_EXPECTED[kind]}, got {shown(value)}{quotes}"
    if kind in _BOUND:
        return _BOUND[kind].format(**context, input=shown(value))
    return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}, got {shown(value)}"


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def keys_at(path: KeyPath, data: Mapping[str, Any]) -> list[str]:
    """The keys that the recipe may have in the section at `path`."""
    model: type[BaseModel] | None = Recipe
    for part in path:
        field = model.model_fields.get(str(part)) if model else None
        model = _model_in(field.annotation) if field else None
        if path[:1] == ("speculation",) and part == "speculation":
            section = data.get("speculation")
            name = section.get("drafter") if isinstance(section, dict) else None
            if isinstance(name, str) and name in DRAFTERS:
                model = DRAFTERS[name].Options
    return list(model.model_fields) if model else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model`, `Model | None` or `Annotated[Model, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(part) for part in get_args(annotation))
    return next((model for model in found if model), None)
