"""What backend `cpu` asks a drafter: which of the target's states it reads, and its heads.

Every answer has a default for drafters that are no heads, so a drafter's file says only what
differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from toolkit.recipe.schema import HeadSource, Recipe, Speculation


class CpuSide:
    """The part of a drafter that the embedded engine is built by."""

    # Proposals are chains, which TensorRT-LLM's tensors carry from one model to another.
    drafts_chains: ClassVar[bool] = True

    @classmethod
    def captured_layers(cls, options: Speculation, layers: int) -> tuple[int, ...]:
        """Layers of the target, counted from 0, whose output states it reads; `layers` itself
        stands for the states after the last norm."""
        return (layers,)

    @classmethod
    def cpu_heads(cls, options: Speculation) -> HeadSource | None:
        """Weights that become an engine of their own, role `heads`, if there are any."""
        return None

    @classmethod
    def cpu_problems(cls, recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Where, and what is wrong, for what only this drafter refuses on backend `cpu`."""
        yield from ()
