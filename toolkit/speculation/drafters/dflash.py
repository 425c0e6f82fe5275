"""DFlash (2026): a small model that attends to the target's layers drafts a block in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from toolkit.recipe.release import Version
from toolkit.recipe.schema import HeadSource, Speculation
from toolkit.speculation.drafters.llmapi_only import LlmApiOnlyDrafter
from toolkit.speculation.llmapi import DraftCheckpoint, FieldPath
from toolkit.speculation.migration import EAGLE3_COSTS

LayerIds = tuple[Annotated[int, Field(ge=0)], ...]


class DFlashSpeculation(Speculation):
    """A drafter trained for this very target."""

    drafter: Literal["dflash"] = "dflash"
    draft: HeadSource
    mask_token_id: int | None = Field(None, ge=0, description="null: the draft's config.json.")
    target_layer_ids: LayerIds | None = Field(None, description="null: the draft's config.json.")
    attention_backend: Literal["VANILLA", "TRTLLM", "FA4"] | None = None


class DFlashDrafter(LlmApiOnlyDrafter):
    """Runs in TensorRT-LLM's PyTorch backend only."""

    Options = DFlashSpeculation
    llmapi_since = "1.3.0rc15"
    needs = "DFlash"
    nearest: ClassVar[Mapping[str, str]] = {"eagle3": f"{EAGLE3_COSTS}; drafts token by token"}

    @classmethod
    def speculative_config(cls, options: Speculation, release: Version) -> dict[str, Any]:
        assert isinstance(options, DFlashSpeculation)
        return block_config(
            options.max_draft_len,
            options.mask_token_id,
            options.target_layer_ids,
            options.attention_backend,
        )

    @classmethod
    def llmapi_draft(cls, options: Speculation) -> DraftCheckpoint:
        assert isinstance(options, DFlashSpeculation)
        return DraftCheckpoint(options.draft, "model")

    @classmethod
    def llmapi_draft_problems(
        cls, options: Speculation, draft: Mapping[str, Any]
    ) -> Iterator[tuple[FieldPath, str]]:
        assert isinstance(options, DFlashSpeculation)
        yield from wrong_class(draft, "DFlash")
        config = draft.get("dflash_config")
        for name in ("mask_token_id", "target_layer_ids"):
            said = config.get(name) if isinstance(config, Mapping) else None
            if getattr(options, name) is None and said is None:
                yield (
                    ("speculation", name),
                    "required: the draft's config.json does not say it (dflash_config)",
                )
        size = draft.get("block_size")
        if isinstance(size, int) and options.max_draft_len > size:
            yield (
                ("speculation", "max_draft_len"),
                f"{options.max_draft_len}, but the draft makes blocks of {size}; lower it",
            )


def wrong_class(draft: Mapping[str, Any], wanted: str) -> Iterator[tuple[FieldPath, str]]:
    """A draft whose config.json names an ordinary model would be loaded as one."""
    found = [str(name) for name in draft.get("architectures") or []]
    if found and not any(wanted.lower() in name.lower() for name in found):
        yield (
            ("speculation", "draft", "checkpoint"),
            f"architectures in its config.json: {', '.join(found)}, which is no {wanted} drafter",
        )


def block_config(
    max_draft_len: int,
    mask_token_id: int | None,
    target_layer_ids: LayerIds | None,
    attention_backend: str | None,
) -> dict[str, Any]:
    """The keys that drafters of whole blocks share; what is unset comes from the draft."""
    config: dict[str, Any] = {"max_draft_len": max_draft_len}
    if mask_token_id is not None:
        config["mask_token_id"] = mask_token_id
    if target_layer_ids is not None:
        config["target_layer_ids"] = list(target_layer_ids)
    if attention_backend is not None:
        config["attention_backend"] = attention_backend
    return config
