"""What backend `tensorrt` asks a drafter: build flags, extra weights, how the executor decodes.

Every answer has a default for drafters that run outside the target's engine, so a drafter's file
says only what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from toolkit.recipe.release import Release
from toolkit.recipe.schema import HeadSource, Recipe, Speculation
from toolkit.speculation.trees import Tree

FlagValue = str | int | bool
FieldPath = tuple[str | int, ...]

MODE = "speculative_decoding_mode"
EXTERNAL = "draft_tokens_external"


class TensorrtSide:
    """The part of a drafter that trtllm-build and the TensorRT-LLM executor see."""

    # Quantised targets that TensorRT-LLM builds with this drafter; None: no restriction.
    quantizations: ClassVar[frozenset[str] | None] = None

    @classmethod
    def engine_flags(
        cls, options: Speculation, role: str, release: Release
    ) -> Mapping[str, FlagValue]:
        """trtllm-build flags, without dashes, that the engine of `role` needs for this drafter."""
        return {}

    @classmethod
    def heads(cls, options: Speculation) -> HeadSource | None:
        """Weights that are converted into the target's own checkpoint, if there are any."""
        return None

    @classmethod
    def architectures(cls, release: Release) -> frozenset[str] | None:
        """Targets that this drafter's engines exist for; None: all."""
        return None

    @classmethod
    def checkpoint_fields(cls, options: Speculation) -> Mapping[str, FlagValue | None]:
        """What the target's config.json must say about the drafter; None: any value."""
        return {}

    @classmethod
    def path_len(cls, options: Speculation) -> int:
        """The most draft tokens that one verify step can accept: the depth, for a tree."""
        return options.max_draft_len

    @classmethod
    def tree(cls, options: Speculation) -> Tree | None:
        """The tree of draft tokens, where the executor is told one."""
        return None

    @classmethod
    def with_tree(cls, options: Speculation, tree: Tree) -> Mapping[str, Any]:
        """What changes in options that have a tree, to draft this one."""
        return {}

    @classmethod
    def as_deep_as(cls, options: Speculation, depth: int) -> Mapping[str, Any]:
        """What changes in the options, so that a verify step accepts at most so many drafts."""
        if (tree := cls.tree(options)) is None:
            return {"max_draft_len": depth}
        kept = [path for path in tree.choices if len(path) <= depth]
        if len(kept) == len(tree.choices):
            return {}
        return cls.with_tree(options, Tree.model_validate(kept))

    @classmethod
    def decoding_config(cls, options: Speculation) -> Mapping[str, Any] | None:
        """Keywords of the executor's DecodingConfig; None: the engine itself does not draft.

        `decoding_mode` is the name of a DecodingMode; a mapping stands for the binding class of
        the same name.
        """
        return None

    @classmethod
    def triton_parameters(cls, options: Speculation) -> Mapping[str, str]:
        """Parameters of Triton's tensorrtllm backend that make the target's engine draft."""
        return {}

    @classmethod
    def triton_problems(
        cls, options: Speculation, release: Release
    ) -> Iterator[tuple[FieldPath, str]]:
        """What the engine can do and that backend has no parameter for."""
        yield from ()

    @classmethod
    def tensorrt_problems(cls, recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
        """Where, and what is wrong, for what only this drafter's engines refuse."""
        yield from ()

    @classmethod
    def pair_problems(
        cls, recipe: Recipe, configs: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[FieldPath, str]]:
        """The same for what only the models' config.json files (by role) show."""
        yield from ()


def external_draft_flags(options: Speculation, role: str) -> dict[str, FlagValue]:
    """Drafts come with each request: the target verifies them, and KV blocks are reused.

    Block reuse needs paged context FMHA, in the draft's engine as well as in the target's.
    """
    flags: dict[str, FlagValue] = {"use_paged_context_fmha": "enable"}
    if role == "target":
        flags |= {MODE: EXTERNAL, "max_draft_len": options.max_draft_len}
    return flags
