"""Deployments of the LLM API and their repositories, on machines without TensorRT-LLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.engine.built import BuiltModels
from toolkit.engine.llmapi.deployment import write_deployment
from toolkit.recipe.schema import Recipe

NGRAM = {"drafter": "ngram", "max_draft_len": 4}
EAGLE3 = {"drafter": "eagle3", "max_draft_len": 4, "heads": {"checkpoint": "org/eagle3-head"}}


def recipe(speculation: dict[str, Any] = NGRAM, **changes: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "t",
            "backend": "pytorch",
            "tensorrt_llm": "1.2.1",
            "target": {"checkpoint": "org/target"},
            "speculation": speculation,
            "engine": {"max_batch_size": 4, "max_input_len": 200, "max_seq_len": 256},
            **changes,
        }
    )


def deployed(given: Recipe, directory: Path, *, draft: bool = False) -> BuiltModels:
    """What `build` leaves behind; with `draft` an EAGLE-3 head that holds nothing."""
    head = None
    if draft:
        head = directory / "head"
        head.mkdir(parents=True)
        (head / "config.json").write_text("{}")
        (head / "model.safetensors").write_bytes(b"\0")
    out = directory / "deployment"
    out.mkdir(parents=True)
    write_deployment(given, out, head)
    return BuiltModels(given, {"target": out}, {})
