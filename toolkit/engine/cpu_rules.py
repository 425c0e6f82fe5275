"""What a recipe may not ask of backend `cpu`."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS

KeyPath = tuple[str | int, ...]


def recipe_problems(recipe: Recipe) -> Iterator[tuple[KeyPath, str]]:
    """Where, and what is wrong, for what only this backend refuses."""
    name = recipe.speculation.drafter
    drafter = DRAFTERS[name]
    if recipe.serve.layout == "bls" and (drafter.reads_hidden or not drafter.drafts_chains):
        needs = "the target's states" if drafter.reads_hidden else "trees of drafts"
        yield (
            ("serve", "layout"),
            f"bls: {name} needs {needs}, which do not travel between models; use layout: inprocess",
        )
    yield from drafter.cpu_problems(recipe)
