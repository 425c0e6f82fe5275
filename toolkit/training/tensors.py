"""torch tensors in safetensors files, written whole or not at all; words go in as JSON bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.safetensors_file import header_bytes, read_header, read_rows
from toolkit.errors import CheckpointError
from toolkit.store import write_atomic

if TYPE_CHECKING:
    import torch

WORDS = "__words__"


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], words: Mapping[str, Any] | None = None
) -> None:
    """Any dtype that torch and safetensors share."""
    arrays = {name: _to_numpy(tensor) for name, tensor in tensors.items()}
    if words is not None:
        arrays[WORDS] = np.frombuffer(json.dumps(words).encode(), np.uint8)
    header = header_bytes({name: (array.dtype, array.shape) for name, array in arrays.items()})
    write_atomic(path, b"".join([header, *(array.tobytes() for array in arrays.values())]))


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors, and the words that were written with them."""
    import torch

    arrays = {name: read_rows(path, span) for name, span in read_header(path).items()}
    try:
        words = json.loads(arrays.pop(WORDS).tobytes()) if WORDS in arrays else {}
    except ValueError:
        raise _damaged(path) from None
    return {name: torch.from_numpy(array) for name, array in arrays.items()}, words


def read_words(path: Path) -> dict[str, Any]:
    """Only the words: the file may be large."""
    span = read_header(path).get(WORDS)
    try:
        words: dict[str, Any] = json.loads(read_rows(path, span).tobytes()) if span else {}
    except ValueError:
        raise _damaged(path) from None
    return words


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(str(path), ["damaged; remove it to begin anew"])


def _to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    import torch

    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        bits: NDArray[Any] = plain.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: NDArray[Any] = plain.numpy()
    return array
