"""PARD (An et al. 2025): a small model drafts all tokens in one pass, from mask tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from toolkit.recipe.release import Version
from toolkit.recipe.schema import HeadSource, Recipe, Speculation
from toolkit.speculation.drafters.eagle3 import SuffixMatching
from toolkit.speculation.drafters.llmapi_only import LlmApiOnlyDrafter
from toolkit.speculation.llmapi import DraftCheckpoint, FieldPath


class PardSpeculation(Speculation):
    """A draft model of the target's family that was trained for parallel drafting."""

    drafter: Literal["pard"] = "pard"
    draft: HeadSource
    mask_token_id: int | None = Field(None, ge=0, description="null: the draft's config.json.")
    sa_config: SuffixMatching | None = None


class PardDrafter(LlmApiOnlyDrafter):
    """Runs in TensorRT-LLM's PyTorch backend only."""

    Options = PardSpeculation
    llmapi_since = "1.3.0rc0"
    needs = "PARD"
    nearest: ClassVar[Mapping[str, str]] = {
        "draft_target": "a model of that size that drafts token by token: slower drafts",
    }
    optional: ClassVar[Mapping[str, tuple[str, ...]]] = {"sa_config": ()}

    @classmethod
    def speculative_config(cls, options: Speculation, release: Version) -> dict[str, Any]:
        assert isinstance(options, PardSpeculation)
        config: dict[str, Any] = {"max_draft_len": options.max_draft_len}
        if options.mask_token_id is not None:
            config["mask_token_id"] = options.mask_token_id
        if options.sa_config:
            config["sa_config"] = options.sa_config.model_dump()
        return config

    @classmethod
    def llmapi_draft(cls, options: Speculation) -> DraftCheckpoint:
        assert isinstance(options, PardSpeculation)
        return DraftCheckpoint(options.draft, "model")

    @classmethod
    def tokens_per_step(cls, options: Speculation) -> int:
        return 2 * options.max_draft_len  # K tokens of the text and K masks, of which one is both

    @classmethod
    def llmapi_draft_problems(
        cls, options: Speculation, draft: Mapping[str, Any]
    ) -> Iterator[tuple[FieldPath, str]]:
        assert isinstance(options, PardSpeculation)
        named = draft.get("mask_token_id", draft.get("pard_token"))
        if options.mask_token_id is None and named is None:
            yield (
                ("speculation", "mask_token_id"),
                "required: the draft's config.json has neither pard_token nor mask_token_id, so it "
                "may be an ordinary model (drafter: draft_target)",
            )

    @classmethod
    def llmapi_notes(cls, recipe: Recipe, release: Version) -> Iterator[str]:
        drafted = recipe.speculation.max_draft_len
        yield (
            f"PARD drafts {drafted} token(s) and takes {2 * drafted} tokens a request through each "
            f"step (others take {drafted + 1}): size max_num_tokens for that"
        )
