"""A model family as tables: where each Hugging Face tensor goes, and what config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# How the ranks of a tensor-parallel group share one tensor.
#   whole      every rank has all of it
#   rows       output features in equal parts
#   columns    input features in equal parts
#   kv_heads   rows by KV head; with fewer heads than ranks, a head is on several ranks
#   vocab      rows in equal parts after padding with zero rows
#   embedding  whole, vocab or columns, as use_parallel_embedding and embedding_sharding_dim say
Split = Literal["whole", "rows", "columns", "kv_heads", "vocab", "embedding"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one Hugging Face tensor goes. Several with one name are joined by rows, in order."""

    name: str  # TensorRT-LLM's; {i} is the decoder layer
    shape: tuple[str, ...]  # words of `sizes` in checkpoint/config.py
    split: Split = "whole"
    add: float = 0.0  # added to every value
    when: str | None = None  # only if config.json has this key and it is true
    dtype: str | None = None  # in the checkpoint, where that is not config.json's
    tied_to: str | None = None  # the Hugging Face tensor to copy when embeddings are tied
    first: bool = False  # outside the layers: on the first pipeline stage instead of the last


@dataclass(frozen=True, kw_only=True)
class Family:
    """Everything that conversion has to know of one architecture."""

    weights: Mapping[str, Place | None]  # Hugging Face name -> place; None: known and dropped
    defaults: Mapping[str, Any]  # what the architecture means by a key that config.json leaves out
    fields: Mapping[str, str]  # config.json of TensorRT-LLM <- of Hugging Face
    constants: Mapping[str, Any]  # the same for every model of the family
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values that can be kept
    parallel_embedding: bool = False  # the embedding is split wherever there are several ranks
