"""Medusa (Cai et al. 2024): heads on the target's last hidden state draft a tree in one go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from toolkit.recipe.release import Release
from toolkit.recipe.schema import HeadSource, Recipe, Speculation
from toolkit.speculation.drafters.engine_only import EngineOnlyDrafter
from toolkit.speculation.migration import EAGLE3_COSTS, NGRAM_COSTS
from toolkit.speculation.tensorrt import MODE, FieldPath, FlagValue
from toolkit.speculation.trees import Tree, fit_problems


class MedusaSpeculation(Speculation):
    """Heads trained for this very target; max_draft_len counts the nodes of the tree."""

    drafter: Literal["medusa"] = "medusa"
    max_draft_len: int = Field(63, ge=1, le=512, description="Nodes of the tree, at most.")
    heads: HeadSource
    num_medusa_heads: int | None = Field(
        None, ge=1, le=16, description="Use this many; null: as many as the weights hold."
    )
    medusa_choices: Tree = Field(
        Tree.model_validate("medusa/mc_sim_7b_63"), description="Paths, or the name of a tree."
    )


class MedusaDrafter(EngineOnlyDrafter):
    """Runs inside the target's engine."""

    Options = MedusaSpeculation
    needs = "Medusa heads"
    nearest: ClassVar[Mapping[str, str]] = {
        "eagle3": f"{EAGLE3_COSTS}; Medusa heads cannot be turned into one",
        "ngram": NGRAM_COSTS,
    }
    # Heads stay in the target's dtype, and engines of a quantised target with plain heads fail.
    quantizations: ClassVar[frozenset[str] | None] = frozenset()

    @classmethod
    def engine_flags(
        cls, options: Speculation, role: str, release: Release
    ) -> Mapping[str, FlagValue]:
        return {MODE: "medusa", "max_draft_len": options.max_draft_len}

    @classmethod
    def heads(cls, options: Speculation) -> HeadSource:
        assert isinstance(options, MedusaSpeculation)
        return options.heads

    @classmethod
    def architectures(cls, release: Release) -> frozenset[str]:
        return frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"})

    @classmethod
    def checkpoint_fields(cls, options: Speculation) -> Mapping[str, FlagValue | None]:
        assert isinstance(options, MedusaSpeculation)
        return {
            "max_draft_len": options.max_draft_len,
            "num_medusa_heads": options.num_medusa_heads,
        }

    @classmethod
    def path_len(cls, options: Speculation) -> int:
        assert isinstance(options, MedusaSpeculation)
        return options.medusa_choices.depth

    @classmethod
    def tree(cls, options: Speculation) -> Tree:
        assert isinstance(options, MedusaSpeculation)
        return options.medusa_choices

    @classmethod
    def decoding_config(cls, options: Speculation) -> Mapping[str, Any]:
        assert isinstance(options, MedusaSpeculation)
        return {"medusa_choices": options.medusa_choices.lists()}

    @classmethod
    def triton_parameters(cls, options: Speculation) -> Mapping[str, str]:
        assert isinstance(options, MedusaSpeculation)
        return {"decoding_mode": "medusa", "medusa_choices": options.medusa_choices.braces()}

    @classmethod
    def tensorrt_problems(cls, recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, MedusaSpeculation)
        for problem in fit_problems(
            options.medusa_choices.choices,
            max_draft_len=options.max_draft_len,
            depth=options.num_medusa_heads,
        ):
            yield ("speculation", "medusa_choices"), problem
