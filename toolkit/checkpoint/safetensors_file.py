"""The safetensors header, read without trusting it, and written.

8 bytes  N, little-endian
N bytes  JSON {name: {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, ...}
the rest data; offsets count from its first byte and cover it without hole or overlap
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.interfaces import ALL
from toolkit.errors import CheckpointError

MAX_HEADER = 100_000_000  # the format's own limit
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I16": np.dtype(np.int16),
    "U16": np.dtype(np.uint16),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "F32": np.dtype(np.float32),
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
    "F64": np.dtype(np.float64),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Span:
    """Where one tensor lies in its file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int  # from the first byte of the file
    stop: int


def read_header(path: Path) -> dict[str, Span]:
    """Every tensor of the file, after checking that header and file size agree on all of them."""
    try:
        length, size, raw = _header(path)
    except OSError as error:
        raise CheckpointError(str(path), [f"not readable: {error.strerror}"]) from None
    entries = _parse(path, raw)
    entries.pop("__metadata__", None)
    problems: list[str] = []
    spans = {name: _span(name, entry, 8 + length, problems) for name, entry in entries.items()}
    good = {name: span for name, span in spans.items() if span is not None}
    if not problems:
        problems = _cover(good, 8 + length, size)
    if problems:
        raise CheckpointError(str(path), problems)
    return good


def shown(name: str) -> str:
    """A name from a file, safe to print: no control characters, no kilobytes."""
    text = name if name.isprintable() else repr(name)
    return text if len(text) <= 200 else text[:200] + "..."


def _header(path: Path) -> tuple[int, int, bytes]:
    """(length of the header, size of the file, the header)"""
    # A pipe or a device under this name would block or never end.
    if not path.is_file():
        raise CheckpointError(str(path), ["missing, or not a regular file"])
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            claim = f"claims {length}" if size >= 8 else "is missing"
            problem = (
                f"not a whole safetensors file: it has {size} bytes and its header {claim} "
                f"(at most {MAX_HEADER}); download or copy it again"
            )
            raise CheckpointError(str(path), [problem])
        return length, size, file.read(length)


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"keys occur twice: {', '.join(map(shown, twice[:5]))}")
        return found

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else error
        raise CheckpointError(str(path), [f"the header is not JSON: {reason}"]) from None
    if not isinstance(header, dict):
        raise CheckpointError(str(path), ["the header is not a JSON object"])
    return header


def _span(name: str, entry: Any, base: int, problems: list[str]) -> Span | None:
    """One checked header entry, or None after saying what is wrong with it."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        problems.append(f"{shown(name)}: expected dtype, shape and data_offsets")
        return None
    shape, offsets = entry["shape"], entry["data_offsets"]
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        problems.append(
            f"{shown(name)}: dtype {str(entry['dtype'])[:40]!r} is not one of {', '.join(DTYPES)}"
        )
        return None
    if not _counts(shape) or len(shape) > 8:
        problems.append(f"{shown(name)}: shape {str(shape)[:80]} is not a list of sizes")
        return None
    if not _counts(offsets) or len(offsets) != 2:
        problems.append(f"{shown(name)}: data_offsets {str(offsets)[:80]} are not two positions")
        return None
    begin, end = offsets
    wanted = math.prod(shape) * dtype.itemsize
    if end - begin != wanted:
        problems.append(
            f"{shown(name)}: data_offsets hold {end - begin} bytes, but shape {shape} of "
            f"{entry['dtype']} takes {wanted}"
        )
        return None
    return Span(dtype, tuple(shape), base + begin, base + end)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value
    )


def _cover(spans: Mapping[str, Span], start: int, size: int) -> list[str]:
    """What keeps the tensors from covering the data exactly."""
    beyond = [shown(name) for name, span in spans.items() if span.stop > size]
    if beyond:
        end = max(span.stop for span in spans.values())
        return [
            f"truncated: it has {size} bytes and its tensors end at {end}, so {len(beyond)} of "
            f"{len(spans)} are cut or missing ({', '.join(beyond[:3])}, ...); copy it again"
        ]
    problems, at = [], start
    for name, span in sorted(spans.items(), key=lambda item: (item[1].start, item[1].stop)):
        if span.start < at:
            problems.append(f"{shown(name)}: its data overlaps another tensor's")
        elif span.start > at:
            problems.append(f"{shown(name)}: {span.start - at} bytes before it belong to no tensor")
        at = max(at, span.stop)
    if not problems and at != size:
        problems.append(f"{size - at} bytes at the end belong to no tensor")
    return problems


def read_rows(path: Path, span: Span, rows: slice = ALL, columns: slice = ALL) -> NDArray[Any]:
    """Rows (and of them columns) of one tensor, read from disk now."""
    length = span.shape[0] if span.shape else 1
    first, last, _ = rows.indices(length)
    width = math.prod(span.shape[1:]) * span.dtype.itemsize
    data = np.empty(max(last - first, 0) * width, np.uint8)
    with path.open("rb", buffering=0) as file:
        file.seek(span.start + first * width)
        view, done = data.data, 0
        while done < len(view):
            count = file.readinto(view[done:])
            if not count:
                raise CheckpointError(str(path), ["became shorter while it was read"])
            done += count
    shape = (last - first, *span.shape[1:]) if span.shape else ()
    array = data.view(span.dtype).reshape(shape)
    return array if columns == ALL else array[:, columns]


def header_bytes(tensors: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> bytes:
    """The header of a file whose data follows in this order."""
    entries, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = at + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned
    return len(text).to_bytes(8, "little") + text
