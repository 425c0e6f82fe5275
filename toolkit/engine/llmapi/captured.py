"""Which of the target's layers an EAGLE-3 head reads, and whether a release can be told.

What a release captures unless it is told: layers 1, L // 2 - 1 and L - 4 of L.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.engine.llmapi.emit import wanted_config
from toolkit.engine.llmapi.profiles import profile
from toolkit.recipe.schema import Recipe

CAPTURE_KEY = "eagle3_layers_to_capture"


def captured_problem(recipe: Recipe, captured: Sequence[int], layers: int | None) -> str | None:
    """Why a head trained on these layers would read others; `layers` is the target's count."""
    said = wanted_config(recipe).get(CAPTURE_KEY)
    if said is not None and sorted(captured) != said:
        return f"{said}, but the head was trained on layers {sorted(captured)}; remove it"
    default = sorted({1, layers // 2 - 1, layers - 4}) if layers else None
    if said is None and not _can_be_told(recipe) and sorted(captured) != default:
        return (
            f"the head reads the target's layers {sorted(captured)}, and TensorRT-LLM "
            f"{recipe.tensorrt_llm} cannot be told which; use 1.1 or newer"
        )
    return None


def captured_config(recipe: Recipe, captured: Sequence[int]) -> dict[str, Any]:
    """The key that says it, where the release has one and the recipe does not."""
    if CAPTURE_KEY in wanted_config(recipe) or not _can_be_told(recipe):
        return {}
    return {CAPTURE_KEY: sorted(captured)}


def _can_be_told(recipe: Recipe) -> bool:
    return CAPTURE_KEY in profile(recipe.tensorrt_llm).methods[recipe.speculation.drafter].keys
