"""Tensors of a `.pt` or `.bin` file, loaded as data only: nothing in the file is ever run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError  # the exception only
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.interfaces import ALL, TensorInfo
from toolkit.errors import CheckpointError
from toolkit.optional import require


class TorchFile:
    """A flat state dict; the tensors stay on disk where the file's format allows."""

    def __init__(self, path: Path) -> None:
        self._tensors = _load(path)
        self.tensors = {
            name: TensorInfo(name, tuple(t.shape), str(t.dtype).removeprefix("torch."))
            for name, t in self._tensors.items()
        }

    def read(self, name: str, rows: slice = ALL, columns: slice = ALL) -> NDArray[Any]:
        part = self._tensors[name][rows]
        part = (part if columns == ALL else part[:, columns]).detach().contiguous()
        if self.tensors[name].dtype == "bfloat16":  # numpy has none of its own
            import torch

            bits: NDArray[Any] = part.view(torch.int16).numpy()
            return bits.view(ml_dtypes.bfloat16)
        return np.asarray(part.numpy())


def _load(path: Path) -> Mapping[str, Any]:
    torch = require("torch", extra="train", why=f"reading {path.name}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about formats; what matters becomes an error here
            found = _open(torch, path)
    except UnpicklingError:
        raise CheckpointError(
            str(path),
            ["holds more than tensors, and could run code if it were opened; not read. Ask its "
             "author for a safetensors file"],
        ) from None  # fmt: skip
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(str(path), [f"not a whole PyTorch file: {first[:200]}"]) from None
    if not isinstance(found, Mapping) or not found:
        what = type(found).__name__
        raise CheckpointError(str(path), [f"holds a {what}, expected named tensors"])
    other = [str(name)[:80] for name, value in found.items() if not _is_plain(torch, name, value)]
    if other:
        shown = ", ".join(other[:5])
        raise CheckpointError(str(path), [f"not plain tensors: {shown}; expected a state dict"])
    return found


def _open(torch: Any, path: Path) -> Any:
    options = {"map_location": "cpu", "weights_only": True}
    try:
        return torch.load(path, mmap=True, **options)
    except RuntimeError as error:
        if "mmap" not in str(error):
            raise
        return torch.load(path, **options)  # written by PyTorch before 1.6: read as a whole


def _is_plain(torch: Any, name: Any, value: Any) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not value.is_quantized
    )
