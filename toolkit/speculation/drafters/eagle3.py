"""EAGLE-3 (Li et al. 2025): known by name here, so that a recipe for it gets an answer."""

from __future__ import annotations

from typing import Literal

from toolkit.recipe.schema import HeadSource, Speculation
from toolkit.speculation.drafters.engine_only import EngineOnlyDrafter


class Eagle3Speculation(Speculation):
    """A head that reads three of the target's layers and has a vocabulary of its own."""

    drafter: Literal["eagle3"] = "eagle3"
    heads: HeadSource


class Eagle3Drafter(EngineOnlyDrafter):
    """Runs in TensorRT-LLM's PyTorch backend only."""

    Options = Eagle3Speculation
    needs = "EAGLE-3 head"

    @classmethod
    def unsupported_on(cls, backend: str, version: str) -> str | None:
        if backend == "pytorch":
            return None
        if backend == "tensorrt":
            return (
                "TensorRT-LLM's engines have no place for its fused hidden states, draft "
                "vocabulary and lm_head; use backend: pytorch (TensorRT-LLM 1.0 or newer)"
            )
        return f"backend {backend!r} has no EAGLE-3 head; use backend: pytorch"
