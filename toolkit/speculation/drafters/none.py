"""No drafting: the same loop, one token per step. The baseline of every comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from toolkit.recipe.schema import Speculation
from toolkit.speculation.interfaces import Drafter, DraftRequest, LanguageModel, Proposal


class NoSpeculation(Speculation):
    """Plain decoding."""

    drafter: Literal["none"] = "none"


class NoDrafter(Drafter):
    """Proposes nothing."""

    Options = NoSpeculation

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, LanguageModel]) -> NoDrafter:
        return cls()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal([]) for _ in requests]
