"""One engine as the rules see it: what trtllm-build will be told, about which checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from toolkit.engine.trtllm.command import engine_flags, release_of
from toolkit.engine.trtllm.flags import FlagValue, with_default
from toolkit.recipe.release import Release
from toolkit.recipe.schema import ModelSpec, Recipe

FieldPath = tuple[str | int, ...]
Problem = tuple[FieldPath, str]  # where in the recipe, and what is wrong

QUANT_ALGOS = {
    "w8a16": "W8A16", "w4a16": "W4A16", "fp8": "FP8", "nvfp4": "NVFP4", "awq": "W4A16_AWQ",
    "gptq": "W4A16_GPTQ", "smoothquant": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One engine as the rules see it."""

    recipe: Recipe
    role: str
    pretrained: Mapping[str, Any] = field(default_factory=dict)  # config.json; empty: not known
    final: bool = False  # it is the one that is built, drafting heads included
    sm: int | None = None

    @cached_property
    def model(self) -> ModelSpec:
        return self.recipe.models()[self.role]

    @cached_property
    def release(self) -> Release:
        return release_of(self.recipe)

    @cached_property
    def flags(self) -> Mapping[str, FlagValue]:
        return engine_flags(self.recipe, self.role)

    @property
    def mode(self) -> str | None:
        found = self.flags.get("speculative_decoding_mode")
        return None if found is None else str(found)

    @property
    def speculates(self) -> bool:
        return self.recipe.speculation.drafter != "none"

    @property
    def where(self) -> FieldPath:
        """The section of the recipe that describes this model."""
        return ("target",) if self.role == "target" else ("speculation", self.role)

    def value(self, name: str) -> FlagValue | None:
        return with_default(self.flags, name, self.release)

    def quantized(self, key: str) -> str | None:
        """quant_algo or kv_cache_quant_algo, from config.json or else from the recipe."""
        stored = self.pretrained.get("quantization")
        if isinstance(stored, Mapping):
            found = stored.get(key)
            return None if found is None else str(found)
        return QUANT_ALGOS.get((self.model.quantization or "").lower()) if "kv" not in key else None
