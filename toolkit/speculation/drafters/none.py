"""No drafting: the same loop, one token per step. The baseline of every comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolkit.recipe.release import Version
from toolkit.recipe.schema import Speculation
from toolkit.speculation.interfaces import Drafter, DraftRequest, LanguageModel, Proposal


class NoSpeculation(Speculation):
    """Plain decoding."""

    drafter: Literal["none"] = "none"


class NoDrafter(Drafter):
    """Proposes nothing."""

    Options = NoSpeculation
    llmapi_since = "1.0"

    @classmethod
    def speculative_config(cls, options: Speculation, release: Version) -> dict[str, Any]:
        return {}

    @classmethod
    def tokens_per_step(cls, options: Speculation) -> int:
        return 1

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, LanguageModel]) -> NoDrafter:
        return cls()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal([]) for _ in requests]
