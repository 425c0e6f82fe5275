"""Recipes to take over to another backend, in the words of a user."""

from __future__ import annotations

from typing import Any

from toolkit.recipe.schema import Recipe

HEADS = {"checkpoint": "org/heads"}


def recipe(speculation: dict[str, Any], backend: str = "tensorrt", **changes: Any) -> Recipe:
    """A recipe with that speculation section; `changes` are further sections."""
    data = {
        "name": "r",
        "backend": backend,
        "tensorrt_llm": "1.2.1",
        "target": {"checkpoint": "org/target"},
        "speculation": speculation,
    }
    return Recipe.model_validate({**data, **changes})


def schedule(*steps: tuple[int, int]) -> dict[str, Any]:
    """`(from this batch on, draft length)` as a draft_length section."""
    entries = [{"batch": batch, "draft_len": length} for batch, length in steps]
    return {"policy": "schedule", "schedule": entries}
