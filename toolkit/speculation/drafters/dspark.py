"""DSpark (DeepSeek 2026): DFlash's block, refined position by position by a small Markov head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from toolkit.recipe.release import Version
from toolkit.recipe.schema import HeadSource, Recipe, Speculation
from toolkit.speculation.drafters.dflash import LayerIds, block_config, wrong_class
from toolkit.speculation.drafters.llmapi_only import LlmApiOnlyDrafter
from toolkit.speculation.llmapi import DraftCheckpoint, FieldPath
from toolkit.speculation.migration import EAGLE3_COSTS


class DSparkSpeculation(Speculation):
    """max_draft_len is the block size that the drafter was trained with."""

    drafter: Literal["dspark"] = "dspark"
    max_draft_len: int = Field(7, ge=1, le=64, description="Equals the draft's block_size.")
    draft: HeadSource
    block_size: int | None = Field(None, ge=1, description="null: the draft's config.json.")
    markov_rank: int | None = Field(None, ge=1, description="null: the draft's config.json.")
    markov_head_type: Literal["vanilla", "gated", "rnn"] | None = None
    mask_token_id: int | None = Field(None, ge=0, description="null: the draft's config.json.")
    target_layer_ids: LayerIds | None = Field(None, description="null: the draft's config.json.")
    attention_backend: Literal["AUTO", "VANILLA", "TRTLLM", "CUTEDSL"] | None = None

    @model_validator(mode="after")
    def _whole_block(self) -> DSparkSpeculation:
        if self.block_size is not None and self.block_size != self.max_draft_len:
            raise ValueError(
                f"max_draft_len {self.max_draft_len} must equal block_size {self.block_size}: "
                "DSpark drafts whole blocks"
            )
        return self


class DSparkDrafter(LlmApiOnlyDrafter):
    """Runs in TensorRT-LLM's PyTorch backend only."""

    Options = DSparkSpeculation
    llmapi_since = "1.3.0rc15"
    needs = "DSpark"
    nearest: ClassVar[Mapping[str, str]] = {"eagle3": f"{EAGLE3_COSTS}; drafts token by token"}

    @classmethod
    def speculative_config(cls, options: Speculation, release: Version) -> dict[str, Any]:
        assert isinstance(options, DSparkSpeculation)
        config = block_config(
            options.max_draft_len,
            options.mask_token_id,
            options.target_layer_ids,
            options.attention_backend,
        )
        for name in ("block_size", "markov_rank", "markov_head_type"):
            if getattr(options, name) is not None:
                config[name] = getattr(options, name)
        return config

    @classmethod
    def llmapi_draft(cls, options: Speculation) -> DraftCheckpoint:
        assert isinstance(options, DSparkSpeculation)
        return DraftCheckpoint(options.draft, "model")

    @classmethod
    def follows_schedule(cls, options: Speculation, release: Version) -> bool:
        return False

    @classmethod
    def llmapi_draft_problems(
        cls, options: Speculation, draft: Mapping[str, Any]
    ) -> Iterator[tuple[FieldPath, str]]:
        yield from wrong_class(draft, "DSpark")
        size = draft.get("block_size", draft.get("dspark_block_size"))
        if isinstance(size, int) and size != options.max_draft_len:
            yield (
                ("speculation", "max_draft_len"),
                f"{options.max_draft_len}, but block_size in the draft's config.json is {size}; "
                "DSpark drafts whole blocks: make them equal",
            )

    @classmethod
    def llmapi_notes(cls, recipe: Recipe, release: Version) -> Iterator[str]:
        if recipe.pytorch.acceptance_gate:
            yield "DSpark's draft length is fixed, so whether the acceptance gate ends it is unsure"
        yield (
            f"DSpark drafts whole blocks: max_draft_len {recipe.speculation.max_draft_len} must be "
            "block_size in the draft's config.json"
        )
