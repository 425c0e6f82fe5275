"""Rank files written by streaming: header first, then every tensor block by block.

A block is read once and goes to every rank that holds a part of it, so memory stays at a few
blocks, whatever the size of the model.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import ml_dtypes  # noqa: F401 - numpy learns the name "bfloat16" from it
import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.families.family import Place
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.safetensors_file import header_bytes
from toolkit.checkpoint.split import Shard, shard, split_of, stage_layers
from toolkit.errors import BuildError, CheckpointError
from toolkit.progress import Progress, progress

BLOCK = 8 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """One source tensor that becomes (part of the rows of) a TensorRT-LLM tensor."""

    source: str
    place: Place
    shape: tuple[int, ...]
    kv_heads: int | None = None  # of its own attention, where that is not the target's


def write_ranks(
    source: Source, tensors: Mapping[str, list[Part]], config: Mapping[str, Any], out: Path
) -> None:
    """rank{r}.safetensors for every rank; r = pipeline stage * tp_size + tensor-parallel rank."""
    dtype = np.dtype(config["dtype"])
    tp, pp = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    stages = [
        _stage(tensors, stage, pp, config["num_hidden_layers"]) for stage in range(pp)
    ]  # [pp] local name -> parts
    total = sum(
        _rows(part, config, rank) * _width(part, config, rank) * dtype.itemsize
        for stage in stages
        for parts in stage.values()
        for part in parts
        for rank in range(tp)
    )
    free = shutil.disk_usage(out).free
    if total > free:
        raise BuildError(
            f"{out}: the checkpoint takes {total / 1e9:.1f} GB, this disk has {free / 1e9:.1f} GB "
            "free; free some or choose another disk with --store DIR"
        )
    with progress(f"convert {source.name}", total) as bar:
        for stage, named in enumerate(stages):
            with ExitStack() as files:
                ranks = [
                    files.enter_context((out / f"rank{stage * tp + rank}.safetensors").open("wb"))
                    for rank in range(tp)
                ]
                _write_stage(source, named, config, ranks, bar)


def _stage(
    tensors: Mapping[str, list[Part]], stage: int, pp: int, layers: int
) -> dict[str, list[Part]]:
    """The tensors of one pipeline stage, its layers numbered from 0."""
    mine = stage_layers(layers, pp)[stage]
    chosen = {}
    for name, parts in tensors.items():
        place = parts[0].place
        if "{i}" in place.name:
            before = place.name.index("{i}")
            layer = int(name[before:].partition(".")[0])
            if layer in mine:
                chosen[place.name.format(i=layer - mine.start)] = parts
        elif stage == (0 if place.first else pp - 1):
            chosen[name] = parts
    return chosen


def _shard(part: Part, config: Mapping[str, Any], rank: int) -> Shard:
    tp, kv_heads = config["mapping"]["tp_size"], part.kv_heads or config["num_key_value_heads"]
    return shard(split_of(part.place, config), part.shape, tp, rank, kv_heads=kv_heads)


def _rows(part: Part, config: Mapping[str, Any], rank: int) -> int:
    return _shard(part, config, rank).rows


def _width(part: Part, config: Mapping[str, Any], rank: int) -> int:
    mine = _shard(part, config, rank)
    return mine.right - mine.left


def _write_stage(
    source: Source,
    tensors: Mapping[str, list[Part]],
    config: Mapping[str, Any],
    files: Sequence[IO[bytes]],
    bar: Progress,
) -> None:
    dtype = np.dtype(config["dtype"])
    for rank, file in enumerate(files):
        header = {}
        for name, parts in tensors.items():
            rows = sum(_rows(part, config, rank) for part in parts)
            width = (_width(parts[0], config, rank),) if len(parts[0].shape) > 1 else ()
            header[name] = (dtype, (rows, *width))
        file.write(header_bytes(header))
    for parts in tensors.values():
        for part in parts:
            shards = [_shard(part, config, rank) for rank in range(len(files))]
            _write_part(source, part, dtype, list(zip(shards, files, strict=True)), bar)


def _write_part(
    source: Source,
    part: Part,
    dtype: np.dtype[Any],
    ranks: Sequence[tuple[Shard, IO[bytes]]],
    bar: Progress,
) -> None:
    """Each block of rows is read once and goes to all ranks that have these rows."""
    together: dict[tuple[int, int], list[tuple[Shard, IO[bytes]]]] = {}
    for mine, file in ranks:
        together.setdefault((mine.start, mine.stop), []).append((mine, file))
    for (start, stop), members in together.items():
        for rows in _blocks(start, stop, prod(part.shape[1:]) * 4):
            block = _cast(part, source.read(part.source, rows), dtype)
            for mine, file in members:
                whole = len(part.shape) == 1 or mine.right - mine.left == part.shape[1]
                bar.advance(_write(file, block if whole else block[:, mine.left : mine.right]))
    for mine, file in ranks:
        if mine.pad:
            zeros = np.zeros((mine.pad, mine.right - mine.left), dtype)
            bar.advance(_write(file, zeros))


def _blocks(start: int, stop: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, BLOCK // row_bytes)
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))


def _cast(part: Part, block: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The block in the checkpoint's dtype, rounded to nearest even; same dtype: the same bytes."""
    if block.dtype == dtype and not part.place.add:
        return block
    wide = block if block.dtype == np.float64 else block.astype(np.float32)
    if part.place.add:
        wide = wide + wide.dtype.type(part.place.add)
    try:
        with np.errstate(over="raise"):
            return wide.astype(dtype)
    except FloatingPointError:
        raise CheckpointError(
            part.source, [f"has values beyond the range of {dtype.name}; use dtype bfloat16"]
        ) from None


def _write(file: IO[bytes], block: NDArray[Any]) -> int:
    data = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
    file.write(data.data)
    return data.nbytes
