"""Rank files written by streaming: header first, then every tensor block by block.

A block is read once and goes to every rank that holds a part of it, so memory stays at a few
blocks, whatever the size of the model.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - numpy learns the name "bfloat16" from it
import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.copy_range import copy_range, write_all
from toolkit.checkpoint.families.family import Place
from toolkit.checkpoint.interfaces import Source, Stored
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
    dtype: str | None = None  # in the checkpoint, where that is not config.json's


def write_ranks(
    source: Source, tensors: Mapping[str, list[Part]], config: Mapping[str, Any], out: Path
) -> None:
    """rank{r}.safetensors for every rank; r = pipeline stage * tp_size + tensor-parallel rank."""
    tp, pp = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    stages = [
        _stage(tensors, stage, pp, config["num_hidden_layers"]) for stage in range(pp)
    ]  # [pp] local name -> parts
    total = sum(
        _rows(part, config, rank) * _width(part, config, rank) * _dtype(part, config).itemsize
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
                    files.enter_context(FileIO(out / f"rank{stage * tp + rank}.safetensors", "w"))
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


def _dtype(part: Part, config: Mapping[str, Any]) -> np.dtype[Any]:
    return np.dtype(part.dtype or config["dtype"])


def _rows(part: Part, config: Mapping[str, Any], rank: int) -> int:
    return _shard(part, config, rank).rows


def _width(part: Part, config: Mapping[str, Any], rank: int) -> int:
    mine = _shard(part, config, rank)
    return mine.right - mine.left


def _write_stage(
    source: Source,
    tensors: Mapping[str, list[Part]],
    config: Mapping[str, Any],
    files: Sequence[FileIO],
    bar: Progress,
) -> None:
    for rank, file in enumerate(files):
        header = {}
        for name, parts in tensors.items():
            rows = sum(_rows(part, config, rank) for part in parts)
            width = (_width(parts[0], config, rank),) if len(parts[0].shape) > 1 else ()
            header[name] = (_dtype(parts[0], config), (rows, *width))
        write_all(file, memoryview(header_bytes(header)))
    for parts in tensors.values():
        for part in parts:
            shards = [_shard(part, config, rank) for rank in range(len(files))]
            dtype = _dtype(part, config)
            _write_part(source, part, dtype, list(zip(shards, files, strict=True)), bar)


def _write_part(
    source: Source,
    part: Part,
    dtype: np.dtype[Any],
    ranks: Sequence[tuple[Shard, FileIO]],
    bar: Progress,
) -> None:
    """Each block of rows is read once and goes to all ranks that have these rows."""
    together: dict[tuple[int, int], list[tuple[Shard, FileIO]]] = {}
    for mine, file in ranks:
        together.setdefault((mine.start, mine.stop), []).append((mine, file))
    width = prod(part.shape[1:])
    for (start, stop), members in together.items():
        if plain := _as_it_lies(source, part, dtype, members):
            row = width * dtype.itemsize
            for _, file in members:
                for done in copy_range(
                    plain.path, plain.start + start * row, (stop - start) * row, file
                ):
                    bar.advance(done)
            continue
        for rows in _blocks(start, stop, width * 4):
            block = _cast(part, source.read(part.source, rows), dtype)
            for mine, file in members:
                whole = mine.right - mine.left == width
                bar.advance(_write(file, block if whole else block[:, mine.left : mine.right]))
    for mine, file in ranks:
        if mine.pad:
            zeros = np.zeros((mine.pad, mine.right - mine.left), dtype)
            bar.advance(_write(file, zeros))


def _as_it_lies(
    source: Source, part: Part, dtype: np.dtype[Any], members: Sequence[tuple[Shard, FileIO]]
) -> Stored | None:
    """The source's own bytes, if these ranks take whole rows of them unchanged."""
    whole = all(mine.right - mine.left == prod(part.shape[1:]) for mine, _ in members)
    found = source.stored(part.source) if whole and not part.place.add else None
    return found if found and found.dtype == dtype.name else None


def _blocks(start: int, stop: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, BLOCK // row_bytes)
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))


def _cast(part: Part, block: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The block in the checkpoint's dtype, rounded to nearest even; same dtype: the same bytes."""
    if block.dtype == dtype and not part.place.add:
        return block
    if dtype.kind == "i":
        return block.astype(dtype)
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


def _write(file: FileIO, block: NDArray[Any]) -> int:
    data = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
    write_all(file, data.data)
    return data.nbytes
