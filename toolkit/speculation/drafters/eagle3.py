"""EAGLE-3 (Li et al. 2025): a head that reads three of the target's layers drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from toolkit.recipe.release import Version
from toolkit.recipe.schema import HeadSource, Recipe, Speculation
from toolkit.recipe.section import Section
from toolkit.speculation.drafters.feature_drafter import Branch, FeatureDrafter
from toolkit.speculation.drafters.feature_trees import DYNAMIC, grow_dynamic
from toolkit.speculation.drafters.llmapi_only import LlmApiOnlyDrafter
from toolkit.speculation.heads import FeatureHead
from toolkit.speculation.interfaces import LanguageModel, Proposal
from toolkit.speculation.llmapi import (
    EAGLE3,
    LATE_1_3,
    DraftCheckpoint,
    FieldPath,
    tree_problems,
)
from toolkit.speculation.migration import NGRAM_COSTS


class SuffixMatching(Section):
    """Long matches of the text so far replace what the neural drafter says."""

    threshold: int = Field(4, ge=1, description="Tokens that a match must have.")
    enable_global_pool: bool = Field(False, description="Look in all active requests.")


class Eagle3Speculation(Speculation):
    """A head trained for this very target, with a vocabulary of its own."""

    drafter: Literal["eagle3"] = "eagle3"
    max_draft_len: int = Field(3, ge=1, le=512, description="Depth, with a dynamic tree.")
    heads: HeadSource
    one_model: bool = Field(
        True, description="Draft in the target's graph; false until early previews of 1.3 only."
    )
    use_dynamic_tree: bool = False
    dynamic_tree_max_top_k: int | None = Field(
        None, ge=1, le=64, description="Children of each node that is expanded."
    )
    max_total_draft_tokens: int | None = Field(
        None, ge=1, le=1024, description="Nodes of the tree; null: top k times max_draft_len."
    )
    eagle3_layers_to_capture: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, description="Target layers that the head reads; null: 1, middle, fourth from last."
    )
    eagle3_model_arch: Literal["llama3", "mistral_large3"] = "llama3"
    sa_config: SuffixMatching | None = None

    @model_validator(mode="after")
    def _whole_tree(self) -> Eagle3Speculation:
        top_k, total = self.dynamic_tree_max_top_k, self.max_total_draft_tokens
        if not self.use_dynamic_tree:
            if top_k is not None or total is not None:
                raise ValueError(
                    "dynamic_tree_max_top_k and max_total_draft_tokens are sizes of a dynamic "
                    "tree; set use_dynamic_tree: true or remove them"
                )
            return self
        if top_k is None:
            raise ValueError("use_dynamic_tree needs dynamic_tree_max_top_k (EAGLE's authors: 10)")
        low, high = self.max_draft_len, top_k * self.max_draft_len
        if total is not None and not low <= total <= high:
            raise ValueError(
                f"max_total_draft_tokens {total} is outside {low}..{high} (max_draft_len up to "
                "dynamic_tree_max_top_k times max_draft_len)"
            )
        return self

    @property
    def total_draft_tokens(self) -> int:
        """Draft tokens of one verify step."""
        if not self.use_dynamic_tree:
            return self.max_draft_len
        return self.max_total_draft_tokens or (self.dynamic_tree_max_top_k or 1) * (
            self.max_draft_len
        )


def default_layers(layers: int) -> tuple[int, ...]:
    """What EAGLE's authors and TensorRT-LLM capture, counted from 0."""
    return (1, layers // 2 - 1, layers - 4)


class Eagle3Drafter(FeatureDrafter, LlmApiOnlyDrafter):
    """A chain, or a tree where the head is surest; not in TensorRT-LLM's engines."""

    Options = Eagle3Speculation
    on_cpu = True
    llmapi_since = "1.0"
    needs = "EAGLE-3 head"
    nearest: ClassVar[Mapping[str, str]] = {
        "draft_target": "a small model with the target's tokenizer: more memory and time a draft",
        "ngram": NGRAM_COSTS,
    }
    optional: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "one_model": (),
        "use_dynamic_tree": ("dynamic_tree_max_top_k", "max_total_draft_tokens"),
        "sa_config": (),
    }
    no_engine = (
        "TensorRT-LLM's engines have no place for its fused hidden states, draft vocabulary and "
        "lm_head"
    )

    def __init__(
        self,
        head: FeatureHead,
        target: LanguageModel,
        tree: tuple[int, int] | None = None,  # top k and nodes of a dynamic tree
    ) -> None:
        super().__init__(head, target)
        self._tree = tree

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, Any]) -> Eagle3Drafter:
        assert isinstance(options, Eagle3Speculation)
        top_k = options.dynamic_tree_max_top_k
        tree = (top_k, options.total_draft_tokens) if options.use_dynamic_tree and top_k else None
        return cls(models["heads"], models["target"], tree)

    def _grow(self, branches: Sequence[Branch]) -> list[Proposal]:
        if self._tree is None:
            return super()._grow(branches)
        return grow_dynamic(self._head, branches, *self._tree)

    @classmethod
    def untraceable(cls, options: Speculation, greedy: bool) -> str | None:
        assert isinstance(options, Eagle3Speculation)
        return DYNAMIC if options.use_dynamic_tree else None

    @classmethod
    def as_deep_as(cls, options: Speculation, depth: int) -> Mapping[str, Any]:
        assert isinstance(options, Eagle3Speculation)
        nodes, top_k = options.max_total_draft_tokens, options.dynamic_tree_max_top_k
        if nodes and top_k:  # a tree of that depth has no more and no fewer
            nodes = min(max(nodes, depth), top_k * depth)
        return {"max_draft_len": depth, "max_total_draft_tokens": nodes}

    @classmethod
    def captured_layers(cls, options: Speculation, layers: int) -> tuple[int, ...]:
        assert isinstance(options, Eagle3Speculation)
        return options.eagle3_layers_to_capture or default_layers(layers)

    @classmethod
    def cpu_heads(cls, options: Speculation) -> HeadSource:
        assert isinstance(options, Eagle3Speculation)
        return options.heads

    @classmethod
    def cpu_problems(cls, recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, Eagle3Speculation)
        if options.sa_config:
            yield (
                ("speculation", "sa_config"),
                "backend cpu drafts with the head alone; remove it, or use drafter: suffix",
            )

    @classmethod
    def speculative_config(cls, options: Speculation, release: Version) -> dict[str, Any]:
        assert isinstance(options, Eagle3Speculation)
        config: dict[str, Any] = {"max_draft_len": options.max_draft_len}
        if not options.one_model:
            config["eagle3_one_model"] = False
        if options.use_dynamic_tree:
            config |= {
                "use_dynamic_tree": True,
                "dynamic_tree_max_topK": options.dynamic_tree_max_top_k,
                "max_total_draft_tokens": options.total_draft_tokens,
            }
        if options.eagle3_layers_to_capture is not None:
            config["eagle3_layers_to_capture"] = sorted(set(options.eagle3_layers_to_capture))
        if options.eagle3_model_arch != "llama3":
            config["eagle3_model_arch"] = options.eagle3_model_arch
        if options.sa_config:
            config["sa_config"] = options.sa_config.model_dump()
        return config

    @classmethod
    def llmapi_draft(cls, options: Speculation) -> DraftCheckpoint:
        assert isinstance(options, Eagle3Speculation)
        return DraftCheckpoint(options.heads, "eagle3")

    @classmethod
    def in_target_graph(cls, options: Speculation, release: Version) -> bool:
        assert isinstance(options, Eagle3Speculation)
        return options.one_model or release >= LATE_1_3

    @classmethod
    def tokens_per_step(cls, options: Speculation) -> int:
        assert isinstance(options, Eagle3Speculation)
        return options.total_draft_tokens + 1

    @classmethod
    def follows_schedule(cls, options: Speculation, release: Version) -> bool:
        assert isinstance(options, Eagle3Speculation)
        return not options.use_dynamic_tree

    @classmethod
    def llmapi_problems(cls, recipe: Recipe, release: Version) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, Eagle3Speculation)
        if not options.one_model and release >= LATE_1_3:
            yield (
                ("speculation", "one_model"),
                f"TensorRT-LLM {recipe.tensorrt_llm} ignores false: the head always runs in the "
                "target's graph; remove it",
            )
        if options.use_dynamic_tree and release < EAGLE3:
            yield (
                ("speculation", "use_dynamic_tree"),
                f"TensorRT-LLM {recipe.tensorrt_llm} has no dynamic tree on this backend; it came "
                "with 1.3",
            )

    @classmethod
    def llmapi_model_problems(
        cls, recipe: Recipe, release: Version, target: Mapping[str, Any]
    ) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, Eagle3Speculation)
        if options.use_dynamic_tree:
            yield from tree_problems(recipe, target)
        layers = target.get("num_hidden_layers")
        wrong = [n for n in options.eagle3_layers_to_capture or () if layers and n >= layers]
        if wrong:
            yield (
                ("speculation", "eagle3_layers_to_capture"),
                f"{wrong}, but the target's layers are 0..{int(layers or 0) - 1}",
            )
