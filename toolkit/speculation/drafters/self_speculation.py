"""Self-speculation (Zhang et al. 2024, "Draft & Verify"): some of the target's own layers draft.

The draft is the target's checkpoint less the layers that are skipped, so it needs no training and
no second download. It keeps its own keys and values. `spectool search-layers` finds the layers.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from toolkit.recipe.schema import ModelSpec, Speculation
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter


class SelfSpeculation(Speculation):
    """A subset of the target's layers drafts."""

    drafter: Literal["self_speculation"] = "self_speculation"
    layers: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        min_length=1, description="Layers of the target that draft, counted from 0, ascending."
    )

    @model_validator(mode="after")
    def _ascending(self) -> SelfSpeculation:
        if any(a >= b for a, b in zip(self.layers, self.layers[1:], strict=False)):
            raise ValueError(f"layers {list(self.layers)} must ascend, each once")
        return self


class SelfSpeculationDrafter(DraftTargetDrafter):
    """A draft model made of the target."""

    Options: ClassVar[type[Speculation]] = SelfSpeculation
    llmapi_since = None

    @classmethod
    def unsupported_on(cls, backend: str, version: str) -> str | None:
        if backend == "cpu":
            return None
        return (
            f"backend {backend!r} builds no engine of a part of a model; use backend: cpu, or "
            "drafter: draft_target with a small model of the same family"
        )

    @classmethod
    def models(cls, options: Speculation, target: ModelSpec) -> dict[str, ModelSpec]:
        assert isinstance(options, SelfSpeculation)
        kept = options.layers
        if target.layers is not None:  # the target is itself a part of its checkpoint
            kept = tuple(target.layers[i] for i in options.layers if i < len(target.layers))
        return {"draft": target.model_copy(update={"layers": kept})}
