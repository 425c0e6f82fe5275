"""Multi-token prediction (DeepSeek-V3): layers that come with the target draft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from toolkit.recipe.release import Version
from toolkit.recipe.schema import HeadSource, Recipe, Speculation
from toolkit.speculation.drafters.eagle3 import SuffixMatching
from toolkit.speculation.drafters.llmapi_only import LlmApiOnlyDrafter
from toolkit.speculation.llmapi import (
    LATE_1_3,
    DraftCheckpoint,
    FieldPath,
    sliding_window,
    tree_problems,
)
from toolkit.speculation.migration import EAGLE3_COSTS, NGRAM_COSTS

# Until late previews of 1.3 max_draft_len is overwritten by num_nextn_predict_layers, whose default
# is 1; they take either word, and which preview was the first is not known.
COUNTS_LAYERS_UNTIL: Version = (1, 3, 0, 27)
WINDOW_REFUSED_UNTIL: Version = (1, 3, 0, 0)


class MtpSpeculation(Speculation):
    """max_draft_len tokens, whatever a release calls that number."""

    drafter: Literal["mtp"] = "mtp"
    max_draft_len: int = Field(3, ge=1, le=64)
    use_mtp_vanilla: bool = Field(
        False, description="One layer of the checkpoint for each token, instead of one reused."
    )
    use_relaxed_acceptance_for_thinking: bool = Field(
        False, description="Accept near misses while the model thinks: changes the output."
    )
    relaxed_topk: int = Field(1, ge=1, description="Accept what is among the target's top k ...")
    relaxed_delta: float = Field(
        0.0, ge=0, description="... and at most this far below its best probability."
    )
    begin_thinking_phase_token: int | None = Field(None, ge=0, description="null: DeepSeek-R1's.")
    end_thinking_phase_token: int | None = Field(None, ge=0, description="null: DeepSeek-R1's.")
    use_dynamic_tree: bool = False
    dynamic_tree_max_top_k: int | None = Field(None, ge=1, le=64)
    heads: HeadSource | None = Field(
        None, description="MTP layers in a checkpoint of their own (late previews of 1.3 on)."
    )
    sa_config: SuffixMatching | None = None

    @model_validator(mode="after")
    def _agree(self) -> MtpSpeculation:
        if self.use_dynamic_tree != (self.dynamic_tree_max_top_k is not None):
            raise ValueError("use_dynamic_tree and dynamic_tree_max_top_k go together")
        if self.use_dynamic_tree and self.use_mtp_vanilla:
            raise ValueError("use_mtp_vanilla drafts a line; use_dynamic_tree needs it false")
        return self


class MtpDrafter(LlmApiOnlyDrafter):
    """Runs in TensorRT-LLM's PyTorch backend only."""

    Options = MtpSpeculation
    llmapi_since = "1.0"
    needs = "multi-token prediction"
    nearest: ClassVar[Mapping[str, str]] = {"eagle3": EAGLE3_COSTS, "ngram": NGRAM_COSTS}
    optional: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "use_dynamic_tree": ("dynamic_tree_max_top_k",),
        "sa_config": (),
    }

    @classmethod
    def speculative_config(cls, options: Speculation, release: Version) -> dict[str, Any]:
        assert isinstance(options, MtpSpeculation)
        layers = release < COUNTS_LAYERS_UNTIL
        config: dict[str, Any] = {
            "num_nextn_predict_layers" if layers else "max_draft_len": options.max_draft_len
        }
        if options.use_mtp_vanilla:
            config["use_mtp_vanilla"] = True
        if options.use_relaxed_acceptance_for_thinking:
            config |= {
                "use_relaxed_acceptance_for_thinking": True,
                "relaxed_topk": options.relaxed_topk,
                "relaxed_delta": options.relaxed_delta,
            }
        for name in ("begin_thinking_phase_token", "end_thinking_phase_token"):
            if getattr(options, name) is not None:
                config[name] = getattr(options, name)
        if options.use_dynamic_tree:
            config["use_dynamic_tree"] = True
            config["dynamic_tree_max_topK"] = options.dynamic_tree_max_top_k
        if options.sa_config:
            config["sa_config"] = options.sa_config.model_dump()
        return config

    @classmethod
    def llmapi_draft(cls, options: Speculation) -> DraftCheckpoint | None:
        assert isinstance(options, MtpSpeculation)
        return DraftCheckpoint(options.heads, "model") if options.heads else None

    @classmethod
    def tokens_per_step(cls, options: Speculation) -> int:
        assert isinstance(options, MtpSpeculation)
        return options.max_draft_len * (options.dynamic_tree_max_top_k or 1) + 1

    @classmethod
    def follows_schedule(cls, options: Speculation, release: Version) -> bool:
        assert isinstance(options, MtpSpeculation)
        return not (options.use_mtp_vanilla or options.use_dynamic_tree)

    @classmethod
    def llmapi_problems(cls, recipe: Recipe, release: Version) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, MtpSpeculation)
        if options.heads and release < LATE_1_3:
            yield (
                ("speculation", "heads"),
                f"TensorRT-LLM {recipe.tensorrt_llm} reads MTP layers from the target only; remove "
                "it",
            )
        if not options.use_relaxed_acceptance_for_thinking and (
            options.relaxed_topk != 1 or options.relaxed_delta
        ):
            yield (
                ("speculation", "relaxed_topk"),
                "ignored without use_relaxed_acceptance_for_thinking: true, which changes the "
                "output; remove it",
            )

    @classmethod
    def llmapi_model_problems(
        cls, recipe: Recipe, release: Version, target: Mapping[str, Any]
    ) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, MtpSpeculation)
        where = ("speculation", "drafter")
        layers = _layers(target)
        if layers == 0 and options.heads is None:
            yield (
                where,
                "mtp: the target has no such layers (num_nextn_predict_layers in its config.json); "
                "use eagle3 or ngram",
            )
        if sliding_window(target) and release < WINDOW_REFUSED_UNTIL:
            yield where, "mtp: this release refuses targets with a sliding window; use 1.3"
        if options.use_mtp_vanilla and 0 < layers < options.max_draft_len:
            yield (
                ("speculation", "max_draft_len"),
                f"{options.max_draft_len}, but the target has {layers} MTP layer(s) and "
                "use_mtp_vanilla uses each once; lower it, or use_mtp_vanilla: false",
            )
        if options.use_dynamic_tree:
            yield from tree_problems(recipe, target)

    @classmethod
    def llmapi_notes(cls, recipe: Recipe, release: Version) -> Iterator[str]:
        options = recipe.speculation
        assert isinstance(options, MtpSpeculation)
        if release < LATE_1_3:
            yield (
                f"MTP drafts {options.max_draft_len} token(s) through num_nextn_predict_layers: "
                "with max_draft_len alone this release drafts 1 and does not say so"
            )
        if options.use_dynamic_tree:
            yield "MTP verifies a dynamic tree greedily: temperature and top-p are not followed"
        if options.use_relaxed_acceptance_for_thinking:
            yield (
                f"relaxed acceptance (top {options.relaxed_topk}, delta {options.relaxed_delta}) "
                "accepts tokens that the target would not have said: the output changes"
            )


def _layers(config: Mapping[str, Any]) -> int:
    """MTP layers of a target, under either family's name."""
    return int(config.get("num_nextn_predict_layers") or config.get("mtp_num_hidden_layers") or 0)
