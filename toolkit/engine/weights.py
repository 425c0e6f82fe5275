"""Checkpoint tensors as graph constants: as stored, or int8 with a scale per output channel."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.read import D2T, EMBEDDING, LM_HEAD

_CHAIN = 192  # float32 products that are added one after the other...
_MOST_CHAINS = 8  # ...or an eighth of a wider matrix: every chain is an operation of its own


class Tensors(Protocol):
    """Whole tensors by TensorRT-LLM name."""

    def names(self) -> Iterable[str]: ...

    def tensor(self, name: str) -> NDArray[Any]: ...


class CheckpointTensors(Tensors, Protocol):
    """Those of a checkpoint, with its config.json and where it lies."""

    config: dict[str, Any]
    directory: Path


class Weights:
    """Hands the graph its constants, all of them float32 to whoever multiplies by them."""

    def __init__(self, checkpoint: Tensors, *, int8: bool) -> None:
        self._checkpoint = checkpoint
        self._int8 = int8
        self._names = frozenset(checkpoint.names())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def embedding(self) -> Any:
        """[V, H]"""
        return self._float(self._checkpoint.tensor(EMBEDDING))

    def lm_head(self, embedding: Any) -> Any:
        """[V or D, H]; the embedding's own constant when both hold the same bytes."""
        matrix = self._checkpoint.tensor(LM_HEAD)
        shared = self._checkpoint.tensor(EMBEDDING)
        same = matrix.shape == shared.shape and matrix.dtype == shared.dtype
        if embedding is not None and same and np.array_equal(_bits(matrix), _bits(shared)):
            return embedding
        return self._float(matrix)

    def said_ids(self) -> NDArray[np.int64]:
        """[D]: the token of each row of lm_head, where it has fewer than V."""
        ids: NDArray[np.int64] = self._checkpoint.tensor(D2T)
        return ids + np.arange(len(ids))

    def linear(self, name: str) -> Any:
        """[out, in] of one projection."""
        return self._whole(self._checkpoint.tensor(name))

    def summands(self, name: str) -> list[Any]:
        """`linear` in blocks of columns [out, some of in], whose products add up to the whole.

        Only float32 weights have several. OpenVINO adds up to 1024 products in one chain, and MKL,
        under transformers, 192: a third of the variance. Other formats are coarser by far.
        """
        matrix = self._checkpoint.tensor(name)
        if self._int8 or matrix.dtype != np.float32:
            return [self._whole(matrix)]
        count = min(-(-matrix.shape[1] // _CHAIN), _MOST_CHAINS)
        return [self._float(block) for block in np.array_split(matrix, count, axis=1)]

    def vector(self, name: str) -> Any:
        """A norm weight or a bias."""
        return self._float(self._checkpoint.tensor(name))

    def _whole(self, matrix: NDArray[Any]) -> Any:
        return self._quantized(matrix) if self._int8 else self._float(matrix)

    def _float(self, values: NDArray[Any]) -> Any:
        from openvino import opset13 as op

        node = _constant(values)
        return node if values.dtype == np.float32 else op.convert(node, "f32")

    def _quantized(self, matrix: NDArray[Any]) -> Any:
        """int8 constant -> convert -> multiply: the pattern that stays compressed in memory."""
        from openvino import opset13 as op

        values, scale = quantize_rows(matrix.astype(np.float32))
        return op.multiply(op.convert(_constant(values), "f32"), _constant(scale))


def quantize_rows(
    matrix: NDArray[np.float32],  # [out, in]
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:  # [out, in], [out, 1]
    """TensorRT-LLM's weight-only int8: symmetric, scale = largest magnitude / 128 of each row."""
    scale = np.abs(matrix).max(axis=1, keepdims=True) / np.float32(128)
    scale[scale == 0] = 1.0
    return np.clip(np.rint(matrix / scale), -128, 127).astype(np.int8), scale


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(np.uint8)


def _constant(values: NDArray[Any]) -> Any:
    """A constant of the array's own type; numpy and OpenVINO name bfloat16 differently."""
    from openvino import Shape, Tensor, Type
    from openvino import opset13 as op

    values = np.ascontiguousarray(values)
    if values.dtype.name != "bfloat16":
        return op.constant(values)
    # Memory of OpenVINO's own: a constant made from our array would not keep that array alive.
    tensor = Tensor(Type.bf16, Shape(values.shape))
    tensor.data.view(np.uint16)[...] = values.view(np.uint16)
    return op.constant(tensor)
