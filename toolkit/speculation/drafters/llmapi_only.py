"""The base of drafters of TensorRT-LLM's PyTorch backend, not of its engines, perhaps of `cpu`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from toolkit.errors import InputError
from toolkit.recipe.schema import Speculation
from toolkit.speculation.interfaces import Drafter, DraftRequest, LanguageModel, Proposal
from toolkit.speculation.llmapi import came_later


class LlmApiOnlyDrafter(Drafter):
    """TensorRT-LLM drafts and verifies by itself: only backend `cpu` may want proposals."""

    llmapi_since: ClassVar[str]
    needs: ClassVar[str]  # what another backend would have to have
    on_cpu: ClassVar[bool] = False
    no_engine: ClassVar[str | None] = None  # why TensorRT-LLM's engines cannot have it

    @classmethod
    def unsupported_on(cls, backend: str, version: str) -> str | None:
        if backend == "cpu" and cls.on_cpu:
            return None
        if backend == "pytorch":
            return came_later(cls.llmapi_since, version, cls.needs)
        advice = f"use backend: pytorch (TensorRT-LLM {cls.llmapi_since} or newer)"
        if backend == "tensorrt":
            return f"{cls.no_engine or f'TensorRT-LLM engines have no {cls.needs}'}; {advice}"
        return f"backend {backend!r} has no {cls.needs} yet; {advice}"

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, LanguageModel]) -> LlmApiOnlyDrafter:
        raise InputError(f"{options.drafter}: {cls.unsupported_on('cpu', '')}")

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        raise InputError(f"this drafter needs {self.needs}; use backend: pytorch")
