"""What a recipe may not ask of backend `cpu`."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS

KeyPath = tuple[str | int, ...]


def recipe_problems(recipe: Recipe) -> Iterator[tuple[KeyPath, str]]:
    """Where, and what is wrong, for what only this backend refuses."""
    yield from DRAFTERS[recipe.speculation.drafter].cpu_problems(recipe)
