"""Drafting heads on the embedded engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.backends.cpu.model import CpuModel
from toolkit.backends.cpu.paged import compiled
from toolkit.engine.directory import HEAD, CpuEngine, read_engine
from toolkit.errors import InputError


class CpuParallelHeads:
    """Medusa heads: speculation.heads.ParallelHeads. No cache, one small graph."""

    def __init__(
        self, engine: CpuEngine, token_vocab_size: int, *, threads: int | None = None
    ) -> None:
        self.engine = engine
        self.target_ids: NDArray[np.int64] = read_arrays(engine, token_vocab_size)["target_ids"]
        self._request = compiled(engine, threads)

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Final hidden states [B, H] -> [B, heads, D]."""
        self._request.infer({"hidden": np.ascontiguousarray(hidden)})
        found: NDArray[np.float32] = self._request.get_output_tensor(0).data.copy()
        return found


class CpuFeatureHead(CpuModel):
    """A decoder that reads a feature beside each token: speculation.interfaces.FeatureHead."""

    def __init__(self, engine: CpuEngine, token_vocab_size: int, **options: Any) -> None:
        super().__init__(engine, **options)
        self.token_vocab_size = token_vocab_size
        arrays = read_arrays(engine, token_vocab_size)
        self.target_ids: NDArray[np.int64] = arrays["target_ids"]
        self._weight = arrays.get("fuse.weight")
        self._bias = arrays.get("fuse.bias")

    def fuse(self, captured: NDArray[np.float32]) -> NDArray[np.float32]:
        """Captured states [n, C * H] -> features [n, h]."""
        if self._weight is None:
            return captured
        fused: NDArray[np.float32] = captured @ self._weight.T
        return fused if self._bias is None else fused + self._bias


def load_head(
    directory: Path, target: CpuModel, *, threads: int | None = None
) -> CpuFeatureHead | CpuParallelHeads:
    """The engine of role `heads`, refused on a target that does not capture what it reads."""
    engine = read_engine(directory)
    captured = target.engine.captured_layers
    if engine.head is None:
        raise InputError(f"{directory}: not the engine of a drafting head; build it again")
    if engine.reads != captured:
        raise InputError(
            f"{directory}: the head reads the target's layers {list(engine.reads)}, its engine "
            f"captures {list(captured)}; build both again"
        )
    kind = CpuParallelHeads if engine.head == "medusa" else CpuFeatureHead
    return kind(engine, target.vocab_size, threads=threads)


def read_arrays(engine: CpuEngine, token_vocab_size: int) -> dict[str, NDArray[Any]]:
    """head.npz, refused when it is damaged or speaks of tokens that the target has not."""
    path = engine.directory / HEAD
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        ids = arrays["target_ids"]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise InputError(f"{path}: not readable ({error}); build the engine again") from None
    if ids.min() < 0 or ids.max() >= token_vocab_size:
        raise InputError(
            f"{path}: drafts token {ids.max()}, the target's vocabulary is {token_vocab_size}; "
            "build the engine again"
        )
    return arrays
