"""Lookahead decoding (Fu et al. 2024): the target guesses n-grams in parallel; no second model.

With window W, n-gram size N and verification set G a step looks at
(0 if N = 1 else N - 2) + (W - 1 + G)(N - 1) draft tokens, and accepts at most N - 1 of them:
7, 7, 7 gives 5 + 13 * 6 = 83 and 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from toolkit.recipe.release import Release
from toolkit.recipe.schema import Speculation
from toolkit.speculation.drafters.engine_only import EngineOnlyDrafter
from toolkit.speculation.migration import NGRAM_COSTS
from toolkit.speculation.tensorrt import MODE, FieldPath, FlagValue

_FIELDS = ("max_window_size", "max_ngram_size", "max_verification_set_size")


def lookahead_draft_len(window: int, ngram: int, verification: int) -> int:
    """Draft tokens of one step, which an engine's max_draft_len must equal."""
    return (0 if ngram == 1 else ngram - 2) + (window - 1 + verification) * (ngram - 1)


class LookaheadSpeculation(Speculation):
    """max_draft_len follows from the three sizes and may be left out."""

    drafter: Literal["lookahead"] = "lookahead"
    max_draft_len: int = Field(83, ge=1, le=512, description="Follows from the three sizes.")
    max_window_size: int = Field(7, ge=1, le=64, description="W: guesses made side by side.")
    max_ngram_size: int = Field(7, ge=1, le=32, description="N: tokens of one n-gram.")
    max_verification_set_size: int = Field(
        7, ge=0, le=64, description="G: n-grams verified in one step."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_max_draft_len(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "max_draft_len" in value:
            return value
        sizes = [value.get(name, 7) for name in _FIELDS]
        if all(isinstance(size, int) for size in sizes):
            return {**value, "max_draft_len": lookahead_draft_len(*sizes)}
        return value

    @model_validator(mode="after")
    def _sizes_agree(self) -> LookaheadSpeculation:
        window, ngram, verification = (getattr(self, name) for name in _FIELDS)
        if ngram == 1:
            raise ValueError("max_ngram_size 1 drafts nothing; use 2 or more, or drafter: none")
        needed = lookahead_draft_len(window, ngram, verification)
        if self.max_draft_len != needed:
            raise ValueError(
                f"max_draft_len is {self.max_draft_len}, but window {window}, n-gram {ngram} and "
                f"verification set {verification} need {needed}; leave it out"
            )
        return self


class LookaheadDrafter(EngineOnlyDrafter):
    """Runs inside the target's engine, on a plain checkpoint."""

    Options = LookaheadSpeculation
    needs = "lookahead decoding"
    nearest: ClassVar[Mapping[str, str]] = {
        "ngram": f"{NGRAM_COSTS}; it drafts only what the text holds already",
        "sa": "as ngram, with the longest match of the text's end instead of n-grams",
    }

    @classmethod
    def engine_flags(
        cls, options: Speculation, role: str, release: Release
    ) -> Mapping[str, FlagValue]:
        return {MODE: "lookahead_decoding", "max_draft_len": options.max_draft_len}

    @classmethod
    def path_len(cls, options: Speculation) -> int:
        assert isinstance(options, LookaheadSpeculation)
        return options.max_ngram_size - 1

    @classmethod
    def decoding_config(cls, options: Speculation) -> Mapping[str, Any]:
        return {"lookahead_decoding_config": {name: getattr(options, name) for name in _FIELDS}}

    @classmethod
    def triton_parameters(cls, options: Speculation) -> Mapping[str, str]:
        sizes = {
            name.replace("max_", "lookahead_"): str(getattr(options, name)) for name in _FIELDS
        }
        return {"decoding_mode": "lookahead", **sizes}

    @classmethod
    def triton_problems(
        cls, options: Speculation, release: Release
    ) -> Iterator[tuple[FieldPath, str]]:
        if release < (0, 19):
            yield (
                ("speculation", "drafter"),
                "lookahead: Triton's tensorrtllm backend has its parameters since 0.19",
            )
