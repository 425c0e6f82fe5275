"""What backend `pytorch` asks a drafter: its speculative_config, its draft, its limits by release.

Keys are in TensorRT-LLM's newest words; the profile of a release spells them for it. Every answer
has a default, so a drafter's file says only what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from toolkit.recipe.release import Version, version
from toolkit.recipe.schema import HeadSource, Recipe, Speculation

FieldPath = tuple[str | int, ...]

# Releases at which something changed for several drafters.
SAMPLES: Version = (1, 2, 0, 6)  # drafters in the target's graph can be told to sample
EAGLE3: Version = (1, 3, 0, 0)  # the early previews of 1.3: PARD, dynamic trees
LATE_1_3: Version = (1, 3, 0, 15)  # every drafter runs in the target's graph, and samples


@dataclass(frozen=True)
class DraftCheckpoint:
    """What speculative_model names: a drafting head or a whole model."""

    source: HeadSource
    kind: Literal["eagle3", "model"]


class LlmApiSide:
    """The part of a drafter that TensorRT-LLM's PyTorch backend sees."""

    # The first release whose PyTorch backend has it; None: none has.
    llmapi_since: ClassVar[str | None] = None

    @classmethod
    def speculative_config(cls, options: Speculation, release: Version) -> dict[str, Any]:
        """Its keys besides decoding_type and speculative_model; empty: no speculation."""
        return {"max_draft_len": options.max_draft_len}

    @classmethod
    def llmapi_draft(cls, options: Speculation) -> DraftCheckpoint | None:
        """The checkpoint that TensorRT-LLM loads besides the target, if there is one."""
        return None

    @classmethod
    def in_target_graph(cls, options: Speculation, release: Version) -> bool:
        """Whether drafting is part of the target's forward pass ("one model")."""
        return True

    @classmethod
    def tokens_per_step(cls, options: Speculation) -> int:
        """Tokens of one request that a verify step takes through the model."""
        return options.max_draft_len + 1

    @classmethod
    def overlaps(cls, options: Speculation, release: Version) -> bool:
        """Whether the scheduler may prepare a step while the one before still runs."""
        return True

    @classmethod
    def follows_schedule(cls, options: Speculation, release: Version) -> bool:
        """Whether its draft length may depend on the batch size."""
        return True

    @classmethod
    def llmapi_problems(cls, recipe: Recipe, release: Version) -> Iterator[tuple[FieldPath, str]]:
        """Where, and what is wrong, for what only this drafter has there."""
        yield from ()

    @classmethod
    def llmapi_model_problems(
        cls, recipe: Recipe, release: Version, target: Mapping[str, Any]
    ) -> Iterator[tuple[FieldPath, str]]:
        """The same for what only the target's config.json shows."""
        yield from ()

    @classmethod
    def llmapi_draft_problems(
        cls, options: Speculation, draft: Mapping[str, Any]
    ) -> Iterator[tuple[FieldPath, str]]:
        """The same for what only the draft's config.json shows."""
        yield from ()

    @classmethod
    def llmapi_notes(cls, recipe: Recipe, release: Version) -> Iterator[str]:
        """What a user should know before deploying it."""
        yield from ()


def came_later(since: str, given: str, what: str) -> str | None:
    """Why a release is too old for something; None when it is not (or is no release at all)."""
    number, first = version(given), version(since)
    if number is None or first is None or number >= first:
        return None
    about = " or a preview shortly before" if "rc" in since else ""
    return f"TensorRT-LLM {given} has no {what}; it came with {since}{about}"


def sliding_window(config: Mapping[str, Any]) -> bool:
    """Whether a model's attention is limited to a window, as its config.json says."""
    return bool(config.get("sliding_window")) and config.get("use_sliding_window", True)


def latent_attention(config: Mapping[str, Any]) -> bool:
    """Whether keys and values are compressed (MLA, DeepSeek)."""
    return bool(config.get("kv_lora_rank"))


def tree_problems(recipe: Recipe, target: Mapping[str, Any]) -> Iterator[tuple[FieldPath, str]]:
    """A dynamic tree on a target whose attention it cannot mask."""
    reasons = {"a sliding window": sliding_window, "latent attention (MLA)": latent_attention}
    for what, has in reasons.items():
        if has(target):
            yield (
                ("speculation", "use_dynamic_tree"),
                f"the target has {what}, and TensorRT-LLM has no dynamic tree for it; set it to "
                "false",
            )
