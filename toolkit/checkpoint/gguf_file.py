"""The header of a GGUF file, every length checked against the file's size before it is believed.

magic "GGUF", version 2 or 3, number of tensors, number of metadata pairs
metadata: key, type, value (arrays: type, count, values)
tensors:  name, sizes (fastest first), type, offset into the data, which starts aligned
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from toolkit.errors import CheckpointError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MAX_ARRAY = 1 << 24  # far above any vocabulary


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies; `shape` is row-major, as numpy counts."""

    kind: int  # a GGMLQuantizationType
    shape: tuple[int, ...]
    start: int  # from the first byte of the file
    row_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


class _BrokenError(ValueError):
    """Anything in the file that contradicts itself; becomes a CheckpointError with the path."""


class _Cursor:
    """Reads forward and never past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise _BrokenError(f"truncated: {count} bytes wanted at {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth > 2:
            raise _BrokenError(f"metadata of unknown type {kind} at {self.at}")
        inner, count = self.scalar("I"), self.scalar("Q")
        if count > _MAX_ARRAY:
            raise _BrokenError(f"an array of {count} values, at most {_MAX_ARRAY}")
        if inner in _SCALARS:
            size = struct.calcsize("<" + _SCALARS[inner])
            return list(struct.unpack(f"<{count}{_SCALARS[inner]}", self.take(count * size)))
        return [self.value(inner, depth + 1) for _ in range(count)]


def read_gguf_header(path: Path, block_sizes: Mapping[int, tuple[int, int]]) -> GgufHeader:
    """Metadata and tensors; `block_sizes` is type -> (values, bytes) of one quantised block."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Cursor(data), block_sizes)
    except OSError as error:
        raise CheckpointError(str(path), [f"not readable: {error.strerror}"]) from None
    except (ValueError, struct.error, OverflowError) as error:  # an empty file is a ValueError too
        raise CheckpointError(str(path), [f"not a readable GGUF file: {error}"]) from None


def _read(cursor: _Cursor, block_sizes: Mapping[int, tuple[int, int]]) -> GgufHeader:
    if cursor.take(4) != b"GGUF":
        raise _BrokenError("it does not begin with GGUF")
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise _BrokenError(f"version {version}; 2 and 3 are known")
    tensor_count, pair_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.string()
        if key in metadata:
            raise _BrokenError(f"{key} occurs twice")
        metadata[key] = cursor.value(cursor.scalar("I"))
    raw = [_tensor(cursor) for _ in range(tensor_count)]
    align = metadata.get("general.alignment", 32)
    if not isinstance(align, int) or align < 1:
        raise _BrokenError(f"general.alignment is {align!r}")
    base = -(-cursor.at // align) * align
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in raw:
        if name in tensors:
            raise _BrokenError(f"{name} occurs twice")
        tensors[name] = _placed(name, shape, kind, base + offset, len(cursor.data), block_sizes)
    return GgufHeader(metadata, tensors)


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, dims = cursor.string(), cursor.scalar("I")
    if not 1 <= dims <= 4:
        raise _BrokenError(f"{name} has {dims} dimensions")
    shape = tuple(cursor.scalar("Q") for _ in range(dims))[::-1]
    return name, shape, cursor.scalar("I"), cursor.scalar("Q")


def _placed(
    name: str,
    shape: tuple[int, ...],
    kind: int,
    start: int,
    size: int,
    block_sizes: Mapping[int, tuple[int, int]],
) -> GgufTensor:
    if kind not in block_sizes:
        raise _BrokenError(f"{name} has the unknown type {kind}")
    values, width = block_sizes[kind]
    if shape[-1] % values:
        raise _BrokenError(f"{name}: rows of {shape[-1]} are not whole blocks of {values}")
    row_bytes = shape[-1] // values * width
    if start + row_bytes * prod(shape[:-1]) > size:
        raise _BrokenError(
            f"truncated: {name} ends at {start + row_bytes * prod(shape[:-1])} of {size}"
        )
    return GgufTensor(kind, shape, start, row_bytes)
