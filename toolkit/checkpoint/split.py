"""Which part of a tensor a rank holds: the same answer serves writing and joining.

Tensor parallelism cuts matrices (T ranks), pipeline parallelism the list of layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from toolkit.checkpoint.families.family import Place, Split


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part: rows [start, stop) and columns [left, right), then `pad` zero rows."""

    start: int
    stop: int
    left: int
    right: int
    pad: int = 0

    @property
    def rows(self) -> int:
        return self.stop - self.start + self.pad


def shard(split: Split, shape: tuple[int, ...], tp: int, rank: int, *, kv_heads: int) -> Shard:
    """Rank `rank`'s part of a tensor; a vector counts as one column."""
    rows, width = shape[0], shape[1] if len(shape) > 1 else 1
    if split == "rows" or (split == "kv_heads" and kv_heads >= tp):
        size = rows // tp
        return Shard(rank * size, (rank + 1) * size, 0, width)
    if split == "kv_heads":
        # Each head is repeated tp / kv_heads times in a row before the cut.
        head, size = rank * kv_heads // tp, rows // kv_heads
        return Shard(head * size, (head + 1) * size, 0, width)
    if split == "vocab":
        size = -(-rows // tp)
        start, stop = min(rank * size, rows), min((rank + 1) * size, rows)
        return Shard(start, stop, 0, width, size - (stop - start))
    if split == "columns":
        size = width // tp
        return Shard(0, rows, rank * size, (rank + 1) * size)
    return Shard(0, rows, 0, width)


def split_of(place: Place, config: Mapping[str, Any]) -> Split:
    """The place's split, with `embedding` resolved by the checkpoint's config.json."""
    if place.split != "embedding":
        return place.split
    if not config.get("use_parallel_embedding", False):
        return "whole"
    return "columns" if config.get("embedding_sharding_dim", 0) == 1 else "vocab"


def stage_layers(layers: int, pp: int) -> list[range]:
    """The layers of every pipeline stage; the first `layers % pp` stages have one more."""
    starts = [stage * (layers // pp) + min(stage, layers % pp) for stage in range(pp + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]
