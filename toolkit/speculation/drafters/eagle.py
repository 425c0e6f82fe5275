"""EAGLE-1 and EAGLE-2 (Li et al. 2024): a one-layer head drafts from the target's features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from toolkit.recipe.release import Release, release
from toolkit.recipe.schema import HeadSource, Recipe, Speculation
from toolkit.speculation.drafters.engine_only import EngineOnlyDrafter
from toolkit.speculation.drafters.feature_drafter import Branch, FeatureDrafter
from toolkit.speculation.drafters.feature_trace import feature_ranks
from toolkit.speculation.drafters.feature_trees import DYNAMIC, grow_dynamic, grow_fixed
from toolkit.speculation.heads import FeatureHead
from toolkit.speculation.interfaces import LanguageModel, Proposal
from toolkit.speculation.migration import EAGLE3_COSTS, NGRAM_COSTS
from toolkit.speculation.tensorrt import MODE, FieldPath, FlagValue
from toolkit.speculation.trace import DraftTrace, TracedText
from toolkit.speculation.tree_trace import tree_trace
from toolkit.speculation.trees import Tree, fit_problems, is_chain, non_leaves

MAX_BATCH_SIZE = 512
MAX_DRAFT_LEN = 256


class EagleSpeculation(Speculation):
    """EAGLE-1 drafts a fixed tree; with eagle_use_dynamic_tree it grows one as EAGLE-2 does."""

    drafter: Literal["eagle"] = "eagle"
    max_draft_len: int = Field(63, ge=1, le=512, description="Nodes of the tree, at most 256.")
    heads: HeadSource
    num_eagle_layers: int = Field(4, ge=1, le=16, description="Depth of the tree.")
    max_non_leaves_per_layer: int = Field(
        10, ge=1, description="Nodes of one depth that may have children."
    )
    eagle_choices: Tree | None = Field(
        None, description="Fixed tree; null: medusa/mc_sim_7b_63, TensorRT-LLM's own example."
    )
    eagle_use_dynamic_tree: bool = False
    eagle_dynamic_tree_max_top_k: int | None = Field(
        None, ge=1, le=16, description="EAGLE-2: children of each node that is expanded."
    )
    posterior_threshold: float | None = Field(
        None, ge=0, lt=1, description="Typical acceptance, lossy when sampling; null: exact."
    )

    @property
    def max_depth(self) -> int:
        return self.num_eagle_layers

    @property
    def fixed_tree(self) -> Tree | None:
        """The tree that the executor is told; none when it grows its own."""
        if self.eagle_use_dynamic_tree:
            return None
        return self.eagle_choices or Tree.model_validate("medusa/mc_sim_7b_63")


class EagleDrafter(FeatureDrafter, EngineOnlyDrafter):
    """In TensorRT-LLM's engine num_eagle_layers copies of the head draft; on backend cpu one."""

    Options = EagleSpeculation
    on_cpu = True
    needs = "EAGLE head"
    nearest: ClassVar[Mapping[str, str]] = {
        "eagle3": f"{EAGLE3_COSTS}; an EAGLE-1 or EAGLE-2 head reads one layer of the target, "
        "not three, and cannot be turned into one",
        "ngram": NGRAM_COSTS,
    }

    def __init__(self, head: FeatureHead, target: LanguageModel, options: EagleSpeculation) -> None:
        super().__init__(head, target)
        self._options = options

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, Any]) -> EagleDrafter:
        assert isinstance(options, EagleSpeculation)
        return cls(models["heads"], models["target"], options)

    def _grow(self, branches: Sequence[Branch]) -> list[Proposal]:
        options, tree = self._options, self._options.fixed_tree
        if tree is None:
            top_k = options.eagle_dynamic_tree_max_top_k or 1
            return grow_dynamic(self._head, branches, top_k, options.max_draft_len)
        if is_chain(tree.choices):
            return super()._grow(branches)
        return grow_fixed(self._head, branches, tree.choices, self._target.vocab_size)

    @classmethod
    def untraceable(cls, options: Speculation, greedy: bool) -> str | None:
        assert isinstance(options, EagleSpeculation)
        tree = options.fixed_tree
        if tree is None:
            return DYNAMIC
        if not greedy and not is_chain(tree.choices):
            return "it draws the children of its tree's nodes by chance unless decoding is greedy"
        return None

    def trace(self, text: TracedText, depth: int, least: float | None = None) -> DraftTrace:
        tree = self._options.fixed_tree
        if tree is None or not text.sampling.greedy:
            return super().trace(text, depth, least)
        ranks = feature_ranks(self._head, self._target, text, depth)
        if is_chain(tree.choices):  # it goes on for as long as it is asked to
            return replace(super().trace(text, depth, least), ranks=ranks)
        return tree_trace(ranks, tree.choices, depth)

    @classmethod
    def posterior_threshold(cls, options: Speculation) -> float | None:
        assert isinstance(options, EagleSpeculation)
        return options.posterior_threshold

    @classmethod
    def cpu_heads(cls, options: Speculation) -> HeadSource:
        assert isinstance(options, EagleSpeculation)
        return options.heads

    @classmethod
    def cpu_problems(cls, recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, EagleSpeculation)
        yield from _tree_problems(options, recipe)

    @classmethod
    def engine_flags(
        cls, options: Speculation, role: str, release: Release
    ) -> Mapping[str, FlagValue]:
        return {
            MODE: "eagle",
            "max_draft_len": options.max_draft_len,
            "use_paged_context_fmha": "enable",
        }

    @classmethod
    def heads(cls, options: Speculation) -> HeadSource:
        assert isinstance(options, EagleSpeculation)
        return options.heads

    @classmethod
    def architectures(cls, release: Release) -> frozenset[str]:
        return frozenset({"LlamaForCausalLM", "MistralForCausalLM"})

    @classmethod
    def checkpoint_fields(cls, options: Speculation) -> Mapping[str, FlagValue | None]:
        assert isinstance(options, EagleSpeculation)
        return {
            "max_draft_len": options.max_draft_len,
            "num_eagle_layers": options.num_eagle_layers,
            "max_non_leaves_per_layer": options.max_non_leaves_per_layer,
        }

    @classmethod
    def path_len(cls, options: Speculation) -> int:
        assert isinstance(options, EagleSpeculation)
        return options.num_eagle_layers

    @classmethod
    def tree(cls, options: Speculation) -> Tree | None:
        assert isinstance(options, EagleSpeculation)
        return options.fixed_tree

    @classmethod
    def with_tree(cls, options: Speculation, tree: Tree) -> Mapping[str, Any]:
        assert isinstance(options, EagleSpeculation)
        inner = max(non_leaves(tree.choices).values(), default=1)
        return {
            "eagle_choices": tree,
            "max_draft_len": len(tree.choices),
            "num_eagle_layers": tree.depth,
            "max_non_leaves_per_layer": max(inner, options.max_non_leaves_per_layer),
        }

    @classmethod
    def as_deep_as(cls, options: Speculation, depth: int) -> Mapping[str, Any]:
        assert isinstance(options, EagleSpeculation)
        if (tree := options.fixed_tree) is None:
            return {"num_eagle_layers": depth}
        if is_chain(tree.choices):  # of any depth, see `trace`
            chain = [(0,) * level for level in range(1, depth + 1)]
            return cls.with_tree(options, Tree.model_validate(chain))
        return super().as_deep_as(options, depth)

    @classmethod
    def decoding_config(cls, options: Speculation) -> Mapping[str, Any]:
        assert isinstance(options, EagleSpeculation)
        config: dict[str, Any] = {"greedy_sampling": options.posterior_threshold is None}
        if options.posterior_threshold is not None:
            config["posterior_threshold"] = options.posterior_threshold
        if tree := options.fixed_tree:
            config["eagle_choices"] = tree.lists()
        else:
            config["use_dynamic_tree"] = True
            config["dynamic_tree_max_topK"] = options.eagle_dynamic_tree_max_top_k
        return {"eagle_config": config}

    @classmethod
    def triton_parameters(cls, options: Speculation) -> Mapping[str, str]:
        assert isinstance(options, EagleSpeculation)
        tree = options.fixed_tree
        return {"decoding_mode": "eagle", **({"eagle_choices": tree.braces()} if tree else {})}

    @classmethod
    def triton_problems(
        cls, options: Speculation, release: Release
    ) -> Iterator[tuple[FieldPath, str]]:
        assert isinstance(options, EagleSpeculation)
        if options.eagle_use_dynamic_tree:
            yield (
                ("speculation", "eagle_use_dynamic_tree"),
                "Triton's tensorrtllm backend has no parameter for a dynamic tree; use a fixed one",
            )
        if options.posterior_threshold is not None:
            yield (
                ("speculation", "posterior_threshold"),
                "Triton's tensorrtllm backend has no parameter for it; remove it",
            )

    @classmethod
    def tensorrt_problems(cls, recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, EagleSpeculation)
        if options.max_draft_len > MAX_DRAFT_LEN:
            yield (
                ("speculation", "max_draft_len"),
                f"{options.max_draft_len}; EAGLE engines take at most {MAX_DRAFT_LEN}",
            )
        if recipe.engine.max_batch_size > MAX_BATCH_SIZE:
            yield (
                ("engine", "max_batch_size"),
                f"{recipe.engine.max_batch_size}; EAGLE engines take at most {MAX_BATCH_SIZE}",
            )
        yield from _tree_problems(options, recipe)


def _tree_problems(options: EagleSpeculation, recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
    top_k = ("speculation", "eagle_dynamic_tree_max_top_k")
    if options.eagle_use_dynamic_tree:
        number = release(recipe.tensorrt_llm)
        if number and number < (1, 0):
            yield (
                ("speculation", "eagle_use_dynamic_tree"),
                f"TensorRT-LLM {recipe.tensorrt_llm} has no EAGLE-2; it came with 1.0",
            )
        if options.eagle_choices is not None:
            yield (
                ("speculation", "eagle_choices"),
                "a dynamic tree has no choices; remove one of the two",
            )
        if options.eagle_dynamic_tree_max_top_k is None:
            yield top_k, "required with eagle_use_dynamic_tree (EAGLE's authors use 10)"
        return
    if options.eagle_dynamic_tree_max_top_k is not None:
        yield top_k, "only a dynamic tree has it; set eagle_use_dynamic_tree: true or remove it"
    assert options.fixed_tree
    for problem in fit_problems(
        options.fixed_tree.choices,
        max_draft_len=options.max_draft_len,
        depth=options.num_eagle_layers,
        exact_depth=True,
        max_non_leaves_per_layer=options.max_non_leaves_per_layer,
    ):
        yield ("speculation", "eagle_choices"), problem
