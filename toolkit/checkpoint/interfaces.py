"""The word that every kind of checkpoint answers to: a `Source` of named tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

ALL = slice(None)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What is known of a tensor before it is read; `dtype` is numpy's name for it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor's bytes lie, row after row, exactly as `read` would return them."""

    path: Path
    start: int
    dtype: str


class Source(ABC):
    """Weights under Hugging Face's names, whatever file they come from."""

    name: str  # as the user wrote it
    config: dict[str, Any]  # as in Hugging Face's config.json
    tensors: Mapping[str, TensorInfo]

    @abstractmethod
    def read(self, name: str, rows: slice = ALL, columns: slice = ALL) -> NDArray[Any]:
        """Part of one tensor; only the rows asked for are read. Rows and columns have step 1."""

    def stored(self, name: str) -> Stored | None:
        """For copying without reading; None where the tensor exists only once it is read."""
        return None

    @abstractmethod
    def tokenizer_files(self, out: Path) -> None:
        """Write tokenizer.json and what belongs to it into the existing directory `out`."""
