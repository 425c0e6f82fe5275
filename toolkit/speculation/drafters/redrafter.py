"""ReDrafter (Cheng et al. 2024): a recurrent head and beam search draft inside the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from toolkit.recipe.release import Release
from toolkit.recipe.schema import HeadSource, Speculation
from toolkit.speculation.drafters.engine_only import EngineOnlyDrafter
from toolkit.speculation.migration import EAGLE3_COSTS, NGRAM_COSTS
from toolkit.speculation.tensorrt import MODE, FlagValue


class ReDrafterSpeculation(Speculation):
    """max_draft_len is redrafter_num_beams x redrafter_draft_len_per_beam and may be left out."""

    drafter: Literal["redrafter"] = "redrafter"
    max_draft_len: int = Field(25, ge=1, le=512, description="Beams x tokens per beam.")
    heads: HeadSource
    redrafter_num_beams: int = Field(5, ge=1, le=64)
    redrafter_draft_len_per_beam: int = Field(5, ge=1, le=64)
    redrafter_greedy_search: bool = True

    @model_validator(mode="before")
    @classmethod
    def _fill_in_max_draft_len(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "max_draft_len" in value:
            return value
        beams, per_beam = (
            value.get(f"redrafter_{name}", 5) for name in ("num_beams", "draft_len_per_beam")
        )
        if isinstance(beams, int) and isinstance(per_beam, int):
            return {**value, "max_draft_len": beams * per_beam}
        return value

    @model_validator(mode="after")
    def _max_draft_len_is_the_product(self) -> ReDrafterSpeculation:
        product = self.redrafter_num_beams * self.redrafter_draft_len_per_beam
        if self.max_draft_len != product:
            raise ValueError(
                f"max_draft_len is {self.max_draft_len}, but {self.redrafter_num_beams} beams x "
                f"{self.redrafter_draft_len_per_beam} tokens are {product}; leave it out"
            )
        return self


class ReDrafterDrafter(EngineOnlyDrafter):
    """Runs inside the target's engine."""

    Options = ReDrafterSpeculation
    needs = "ReDrafter head"
    nearest: ClassVar[Mapping[str, str]] = {
        "eagle3": f"{EAGLE3_COSTS}; a recurrent head cannot be turned into one",
        "ngram": NGRAM_COSTS,
    }

    @classmethod
    def engine_flags(
        cls, options: Speculation, role: str, release: Release
    ) -> Mapping[str, FlagValue]:
        return {MODE: "explicit_draft_tokens", "max_draft_len": options.max_draft_len}

    @classmethod
    def heads(cls, options: Speculation) -> HeadSource:
        assert isinstance(options, ReDrafterSpeculation)
        return options.heads

    @classmethod
    def architectures(cls, release: Release) -> frozenset[str]:
        llama = {"LlamaForCausalLM", "MistralForCausalLM"}
        return frozenset(llama if release < (1, 0) else llama | {"Qwen2ForCausalLM"})

    @classmethod
    def checkpoint_fields(cls, options: Speculation) -> Mapping[str, FlagValue | None]:
        assert isinstance(options, ReDrafterSpeculation)
        return {
            "redrafter_num_beams": options.redrafter_num_beams,
            "redrafter_draft_len_per_beam": options.redrafter_draft_len_per_beam,
            "redrafter_greedy_search": options.redrafter_greedy_search,
        }

    @classmethod
    def path_len(cls, options: Speculation) -> int:
        assert isinstance(options, ReDrafterSpeculation)
        return options.redrafter_draft_len_per_beam

    @classmethod
    def decoding_config(cls, options: Speculation) -> Mapping[str, Any]:
        return {}  # everything stands in the engine

    @classmethod
    def triton_parameters(cls, options: Speculation) -> Mapping[str, str]:
        return {"decoding_mode": "redrafter"}
