"""Suffix automaton: the longest match of the text's end, looked up on the GPU, drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from toolkit.recipe.release import Version
from toolkit.recipe.schema import Recipe, Speculation
from toolkit.speculation.drafters.llmapi_only import LlmApiOnlyDrafter
from toolkit.speculation.llmapi import FieldPath

MAX_POOLED_NGRAM = 64


class SaSpeculation(Speculation):
    """No second model; with a global pool, other requests' texts are searched as well."""

    drafter: Literal["sa"] = "sa"
    max_matching_ngram_size: int = Field(-1, ge=-1, description="-1: the longest match.")
    enable_global_pool: bool = False
    global_pool_size: int | None = Field(None, ge=1, description="Texts in the global pool.")

    @model_validator(mode="after")
    def _sizes(self) -> SaSpeculation:
        size = self.max_matching_ngram_size
        if size == 0:
            raise ValueError("max_matching_ngram_size 0 matches nothing; use -1 or 1 and more")
        if self.enable_global_pool and not 1 <= size <= MAX_POOLED_NGRAM:
            raise ValueError(
                f"max_matching_ngram_size {size}: with enable_global_pool it must be "
                f"1..{MAX_POOLED_NGRAM}"
            )
        if self.global_pool_size is not None and not self.enable_global_pool:
            raise ValueError("global_pool_size needs enable_global_pool: true")
        return self


class SaDrafter(LlmApiOnlyDrafter):
    """Runs in TensorRT-LLM's PyTorch backend only."""

    Options = SaSpeculation
    llmapi_since = "1.3.0rc15"
    needs = "suffix automaton"
    nearest: ClassVar[Mapping[str, str]] = {
        "ngram": "matches of a few tokens instead of the longest one",
    }

    @classmethod
    def speculative_config(cls, options: Speculation, release: Version) -> dict[str, Any]:
        assert isinstance(options, SaSpeculation)
        config: dict[str, Any] = {
            "max_draft_len": options.max_draft_len,
            "max_matching_ngram_size": options.max_matching_ngram_size,
        }
        if options.enable_global_pool:
            config["enable_global_pool"] = True
        if options.global_pool_size is not None:
            config["global_pool_size"] = options.global_pool_size
        return config

    @classmethod
    def llmapi_problems(cls, recipe: Recipe, release: Version) -> Iterator[tuple[FieldPath, str]]:
        options, batch = recipe.speculation, recipe.engine.max_batch_size
        assert isinstance(options, SaSpeculation)
        if options.global_pool_size is not None and options.global_pool_size < batch:
            yield (
                ("speculation", "global_pool_size"),
                f"{options.global_pool_size} is below engine.max_batch_size ({batch}); raise it",
            )

    @classmethod
    def llmapi_notes(cls, recipe: Recipe, release: Version) -> Iterator[str]:
        options = recipe.speculation
        assert isinstance(options, SaSpeculation)
        if options.enable_global_pool:
            yield "enable_global_pool: one user's text is drafted for another's request"
