"""A recipe on another backend or release: field by field, with reasons, or refused with reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.engine.llmapi.notes import recipe_notes
from toolkit.engine.llmapi.profiles import profile
from toolkit.errors import RecipeError
from toolkit.migrate.fields import Data, kept
from toolkit.migrate.releases import spelling_changes
from toolkit.migrate.sections import STEPS
from toolkit.migrate.settle import settle
from toolkit.recipe.release import release
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.speculation.migration import Change

BACKEND = "pytorch"
ORDER = ("changed", "renamed", "dropped", "kept")


@dataclass(frozen=True)
class Migration:
    """The recipe over there, and what became of each field that the user wrote."""

    recipe: Recipe
    changes: tuple[Change, ...]
    notes: tuple[str, ...]  # what the new release does without a word

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "changes": [change.to_json() for change in self.changes],
            "notes": list(self.notes),
        }


def migrate(recipe: Recipe, version: str | None = None) -> Migration:
    """The recipe for TensorRT-LLM's PyTorch backend of a release; default: its own, or ours.

    Raises a RecipeError with every reason at once where there is no way over.
    """
    goal = version or _own_release(recipe)
    profile(goal)  # refuses what is no release of that backend
    drafter = DRAFTERS[recipe.speculation.drafter]
    data = Data(recipe.model_dump(mode="json"))
    objection = drafter.unsupported_on(BACKEND, goal)
    if objection:  # the rest is looked at all the same, so that everything is said at once
        data.values["speculation"] = {"drafter": "none"}
    for step in STEPS:
        step(data, goal)
    found, problems = settle(data, {} if objection else drafter.optional)
    if objection:
        problems.insert(0, f"speculation.drafter: {_refusal(recipe, objection, goal)}")
    if problems or found is None:
        raise RecipeError(f"{recipe.name} on backend {BACKEND}, TensorRT-LLM {goal}", problems)
    said = [*data.changes, *drafter.means_on(found.speculation, BACKEND)]
    said += kept(recipe, found, {change.field for change in said})
    said += spelling_changes(recipe, found)
    said.sort(key=lambda change: ORDER.index(change.kind))
    return Migration(found, tuple(said), tuple(recipe_notes(found)))


def _own_release(recipe: Recipe) -> str:
    number = release(recipe.tensorrt_llm)
    default: str = Recipe.model_fields["tensorrt_llm"].default
    return recipe.tensorrt_llm if number and number >= (1, 0) else default


def _refusal(recipe: Recipe, objection: str, goal: str) -> str:
    """Why the drafter is not there, and what comes nearest of what is."""
    nearest: Mapping[str, str] = DRAFTERS[recipe.speculation.drafter].nearest
    there = [
        f"{name} ({cost})"
        for name, cost in nearest.items()
        if DRAFTERS[name].unsupported_on(BACKEND, goal) is None
    ]
    hint = f"; nearest there: {', or '.join(there)}" if there else ""
    return f"{recipe.speculation.drafter}: {objection}{hint}"
