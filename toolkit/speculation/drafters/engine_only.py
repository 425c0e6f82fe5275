"""The base of drafters that exist inside a TensorRT-LLM engine, and perhaps on backend `cpu`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from toolkit.errors import InputError
from toolkit.recipe.schema import Speculation
from toolkit.speculation.interfaces import Drafter, DraftRequest, LanguageModel, Proposal


class EngineOnlyDrafter(Drafter):
    """The engine drafts and verifies by itself: only backend `cpu` may want proposals."""

    needs: ClassVar[str]  # what another backend would have to have
    on_cpu: ClassVar[bool] = False

    @classmethod
    def unsupported_on(cls, backend: str, version: str) -> str | None:
        if backend == "tensorrt" or (backend == "cpu" and cls.on_cpu):
            return None
        return f"backend {backend!r} has no {cls.needs}; use backend: tensorrt"

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, LanguageModel]) -> EngineOnlyDrafter:
        raise InputError(f"{options.drafter}: {cls.unsupported_on('cpu', '')}")

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        raise InputError(f"this drafter needs {self.needs}; use backend: tensorrt")
