"""What every kind of drafting head answers, so that it can go into its target's checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from toolkit.checkpoint.families.family import Split
from toolkit.checkpoint.families.llama import LLAMA
from toolkit.checkpoint.interfaces import Source
from toolkit.recipe.release import Release, release
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS, FAMILIES, HEADS

MAX_LAYERS = 64  # of a head; what says more is not a head


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """Which heads, and everything of the recipe that decides the bytes of the checkpoint."""

    kind: str  # name in HEADS
    checkpoint: str
    revision: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # of config.json
    release: Release = (1, 2)


@dataclass(frozen=True, kw_only=True)
class HeadTensor:
    """One tensor of the heads: where it comes from and which part of it a rank holds."""

    name: str  # TensorRT-LLM's
    source: str  # in the heads' file
    shape: tuple[int, ...]
    split: Split = "whole"
    kv_heads: int | None = None  # the head's own, for split "kv_heads"
    zeros: bool = False  # written as zeros where the file has no such tensor


@dataclass(frozen=True, kw_only=True)
class HeadPlan:
    """What a head adds to a checkpoint, and what is wrong with it."""

    config: Mapping[str, Any]  # the whole config.json
    tensors: tuple[HeadTensor, ...]  # several with one name are joined by rows, in order
    copies: Mapping[str, str] = field(default_factory=dict)  # new name -> the target's own tensor
    dropped: frozenset[str] = frozenset()  # known names that nothing needs
    problems: tuple[str, ...] = ()


class Head(ABC):
    """One kind of head: its files, the targets it fits, its names and its fields."""

    files: ClassVar[tuple[str, ...]]  # where the weights may be, safetensors first
    # Names of a file that holds target and heads together, as NVIDIA ModelOpt writes them.
    prefix: ClassVar[str]
    # Releases since which config.json says it in another way.
    changed_in: ClassVar[tuple[Release, ...]] = ()

    @abstractmethod
    def architecture(self, base: str, release: Release) -> str | None:
        """config.json's `architecture` on a target of this one; None where there is none."""

    @abstractmethod
    def plan(self, heads: Source, base: Mapping[str, Any], spec: HeadSpec) -> HeadPlan:
        """Names, shapes and config.json, from headers alone; `base` is the target's config.json."""

    def targets(self, release: Release) -> list[str]:
        """The architectures that this kind can draft for."""
        return [name for name in FAMILIES if self.architecture(name, release)]


def heads_form(spec: HeadSpec) -> dict[str, Any]:
    """What decides the bytes beside the heads' own: part of the checkpoint's digest."""
    changes = sum(spec.release >= change for change in HEADS[spec.kind].changed_in)
    return {"kind": spec.kind, "fields": dict(spec.fields), "form": changes}


def head_of(recipe: Recipe) -> HeadSpec | None:
    """The heads that a recipe's drafter converts together with the target, if it has any.

    Engines of TensorRT-LLM hold both; on other backends heads stay by themselves.
    """
    options = recipe.speculation
    if recipe.backend != "tensorrt":
        return None
    drafter = DRAFTERS[options.drafter]
    source = drafter.heads(options)
    if source is None or options.drafter not in HEADS:
        return None
    fields = drafter.checkpoint_fields(options)
    return HeadSpec(
        kind=options.drafter,
        checkpoint=source.checkpoint,
        revision=source.revision,
        fields={key: value for key, value in fields.items() if value is not None},
        release=release(recipe.tensorrt_llm) or (1, 2),
    )


def wrong_sizes(values: Mapping[str, Any], layers: str) -> list[str]:
    """Sizes in a head's config.json that are none; `layers` is the one that stays small."""
    return [
        f"config.json: {key} is {value!r}, expected a positive integer"
        + (f" up to {MAX_LAYERS}" if key == layers else "")
        for key, value in values.items()
        if not isinstance(value, int)
        or isinstance(value, bool)
        or not 0 < value <= (MAX_LAYERS if key == layers else 2**31 - 1)
    ]


# What PretrainedConfig assumes by itself; upstream's Medusa and ReDrafter converters leave it out.
ASSUMED: Mapping[str, Any] = {
    **LLAMA.constants,
    "attn_bias": False,
    "mlp_bias": False,
    "runtime_defaults": None,
}


def without_assumed(base: Mapping[str, Any], keep: Iterable[str] = ()) -> dict[str, Any]:
    """The target's config.json less what a loader of Llama assumes; `keep` stays in any case.

    Qwen's loader has no default for most of what it reads, so there everything stays.
    """
    if "qwen_type" in base:
        return dict(base)
    head_size = base["hidden_size"] // base["num_attention_heads"]
    assumed = {**ASSUMED, "head_size": head_size, "rotary_embedding_dim": head_size}
    same = {key for key, value in assumed.items() if key in base and base[key] == value}
    dropped = (same | {"tie_word_embeddings"}) - set(keep)
    return {key: value for key, value in base.items() if key not in dropped}
