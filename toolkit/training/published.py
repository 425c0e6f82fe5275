"""Heads that were published: what training may go on from instead of from the target's layers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.checkpoint.heads.source import HEAD_FILES, head_files_identity, open_head_files
from toolkit.checkpoint.interfaces import Source
from toolkit.errors import CheckpointError, InputError
from toolkit.registry import HEADS
from toolkit.store import Store
from toolkit.training.fit import MODEL, STATE
from toolkit.training.head import HeadKind, HeadOptions
from toolkit.training.tensors import read_words

if TYPE_CHECKING:
    import torch

    from toolkit.training.head import Params


class PublishedKind(HeadKind):
    """A kind whose heads backend `cpu` loads, and whose training may begin with such a head."""

    @classmethod
    @abstractmethod
    def problems(cls, head: Source, target: Mapping[str, Any], options: HeadOptions) -> list[str]:
        """All that keeps training from going on from it; `target` is its target's config.json."""

    @abstractmethod
    def read(self, head: Source) -> Params:
        """What `start` would return, as the head has it; sizes and vocabulary become the head's."""

    def begin_from(self, head: Source) -> Params:
        """`read` on this kind's device, once nothing is wrong with the head."""
        refuse(type(self), head, self.target.config, self.options)
        return {name: tensor.to(self.device) for name, tensor in self.read(head).items()}


@dataclass(frozen=True)
class StartFrom:
    """Where a published head lies: a directory, or a hub id."""

    checkpoint: str
    kind: str  # name in HEAD_TRAINERS
    offline: bool | None = None

    def open(self) -> Source:
        files = HEADS[self.kind].files if self.kind in HEADS else HEAD_FILES
        return open_head_files(self.checkpoint, None, files, offline=self.offline)

    def record(self, store: Store) -> dict[str, Any]:
        """What identifies it, for people and for training.json."""
        found = head_files_identity(self.checkpoint, None, store) or {}
        if "files" in found:  # what resumes a run is not its head
            found = {"files": {k: v for k, v in found["files"].items() if k != STATE}}
        return {"checkpoint": self.checkpoint, **found}


def refuse(
    kind: type[PublishedKind], head: Source, target: Mapping[str, Any], options: HeadOptions
) -> None:
    """Raise CheckpointError with everything that is wrong, from headers alone."""
    if problems := kind.problems(head, target, options):
        raise CheckpointError(head.name, problems)


def begin(
    kind: HeadKind, out: Path, start: StartFrom | None, store: Store
) -> tuple[Params | None, dict[str, Any] | None]:
    """The weights of a published head and what identifies it, where a run in `out` has one.

    A run that is resumed has its head's sizes from the one that it wrote, its weights from its
    state, and no use for `start`.
    """
    if interrupted(out):
        record = read_words(out / STATE)["progress"].get("started_from")
        head = open_head_files(str(out), None, (MODEL,)) if record else None
    else:
        record = start.record(store) if start else None
        head = start.open() if start else None
    if head is None:
        return None, None
    if not isinstance(kind, PublishedKind):
        raise InputError(f"{head.name}: {type(kind).__name__} begins with the target's own layers")
    return kind.begin_from(head), record


def interrupted(out: Path) -> bool:
    """Whether a run in `out` would go on with what is there."""
    return (out / STATE).exists()


def float32(head: Source, name: str) -> torch.Tensor:
    """One tensor in float32, whatever the file has."""
    import torch

    return torch.from_numpy(np.asarray(head.read(name)).astype(np.float32))


def vocabulary_problem(asked: int | None, found: int) -> list[str]:
    """The head's own vocabulary decides; --draft-vocab may say the same."""
    if asked in (None, found):
        return []
    return [
        f"--draft-vocab {asked}, but the head drafts {found} tokens and goes on with them; leave "
        "--draft-vocab out"
    ]


def activation_problem(found: str | None) -> list[str]:
    """Of a decoder layer: training computes SwiGLU."""
    if found in (None, "silu", "swiglu"):
        return []
    return [f"config.json: hidden_act is {found}; training computes silu"]


def option_problems(asked: Mapping[str, int | None], found: Mapping[str, int]) -> Sequence[str]:
    """Shapes that were asked for and that the head does not have."""
    return [
        f"{option} {value}, but the head has {found[option]}; leave {option} out"
        for option, value in asked.items()
        if value not in (None, found[option])
    ]
