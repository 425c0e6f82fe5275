"""What `select --draft` may name, each as a whole recipe with the same target.

ngram                              a drafter that needs no model
CHECKPOINT                         a draft model: directory, hub id, .gguf, pip:NAME==VERSION
target, draft                      the recipe's own target or draft, to change
...@layers=0,1,29 ...@w8a16        some of its layers, another quantization, both
eagle3:CHECKPOINT                  a head of that drafter
recipe.yaml                        whatever its `speculation` section says
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolkit.errors import InputError
from toolkit.recipe.load import load_recipe
from toolkit.recipe.schema import ModelSpec, Recipe
from toolkit.registry import DRAFTERS

OWN = "the recipe's"  # name of the drafter that the recipe has already


@dataclass(frozen=True)
class Candidate:
    """One way to draft for the recipe's target."""

    name: str  # as the user wrote it
    recipe: Recipe


def candidates(recipe: Recipe, words: Sequence[str]) -> list[Candidate]:
    """The recipe's own drafter first, then one per word; all that is wrong at once."""
    found = [] if recipe.speculation.drafter == "none" else [Candidate(OWN, recipe)]
    problems = []
    for word in dict.fromkeys(words):
        try:
            found.append(Candidate(word, _recipe(recipe, word)))
        except InputError as error:
            problems.append(f"  --draft {word}: {error}")
        except ValidationError as error:
            said = error.errors(include_url=False)[0]
            where = ".".join(map(str, said["loc"]))
            problems.append(f"  --draft {word}: {where}: {said['msg']}")
    if problems:
        lines = "\n".join(problems)
        raise InputError(f"cannot select: {len(problems)} problem(s)\n{lines}")
    if len(found) < 2:
        raise InputError("nothing to select from: name at least one --draft besides the recipe's")
    return found


def _recipe(recipe: Recipe, word: str) -> Recipe:
    if word.endswith((".yaml", ".yml")):
        return _with(recipe, load_recipe(word).speculation.model_dump(mode="json"))
    place, *changes = word.split("@") if "@" in word else [word]
    drafter, _, checkpoint = place.partition(":")
    if place in DRAFTERS:
        return _with(recipe, {"drafter": place, **_lengths(recipe)})
    if drafter in DRAFTERS and checkpoint:
        return _with(
            recipe, {"drafter": drafter, **_lengths(recipe), **_source(drafter, checkpoint)}
        )
    model = {**_base(recipe, place).model_dump(mode="json"), **_changes(changes)}
    return _with(recipe, {"drafter": "draft_target", **_lengths(recipe), "draft": model})


def _lengths(recipe: Recipe) -> dict[str, Any]:
    return {"max_draft_len": recipe.speculation.max_draft_len}


def _source(drafter: str, checkpoint: str) -> dict[str, Any]:
    """The field of that drafter that names its weights."""
    fields = DRAFTERS[drafter].Options.model_fields
    for name in ("draft", "heads"):
        if name in fields:
            return {name: {"checkpoint": checkpoint}}
    raise InputError(f"{drafter} takes no checkpoint; write {drafter} alone")


def _base(recipe: Recipe, place: str) -> ModelSpec:
    """The model that a word begins with; another one has the target's dtype."""
    if place == "target":
        return recipe.target
    if place == "draft":
        own = recipe.models().get("draft")
        if own is None:
            raise InputError("the recipe has no draft model; name a checkpoint, or target@layers=")
        return own
    if not place:
        raise InputError("no checkpoint before the @")
    known = Path(place).exists() or "/" in place or ":" in place or place.endswith(".gguf")
    if not known:
        names = ", ".join(("target", "draft", *DRAFTERS))
        raise InputError(
            f"neither a checkpoint on this disk, nor a hub id (org/name), nor one of {names}"
        )
    return ModelSpec(checkpoint=place, dtype=recipe.target.dtype)


def _changes(words: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name == "layers" and equals:
            try:
                found["layers"] = [int(number) for number in value.split(",")]
            except ValueError:
                raise InputError(f"layers={value}: expected numbers, as in layers=0,1,29") from None
        elif name in ("dtype", "quantization", "revision") and value:
            found[name] = value
        elif not equals and name:
            found["quantization"] = name
        else:
            raise InputError(f"@{word}: allowed are @layers=, @dtype=, @revision= and @w8a16")
    return found


def _with(recipe: Recipe, speculation: Mapping[str, Any]) -> Recipe:
    """Validated whole, so that combinations are refused as in a file."""
    data = {**recipe.model_dump(mode="json"), "speculation": dict(speculation)}
    return Recipe.model_validate(data)
