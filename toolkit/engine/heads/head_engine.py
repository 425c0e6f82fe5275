"""What the engines of all drafting heads share: a directory as a decoder's, and one file more.

head.npz      `target_ids` [D]: the target's token for each of the D that the head can draft;
              `fuse.weight` [h, C * H], `fuse.bias` [h]: what joins the target's captured states
              before a decoder reads them, where the head has it
config.json   `cpu.head`: its kind and the layers of the target whose states it reads
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.interfaces import Source
from toolkit.engine.cpu import engine_config, write_engine
from toolkit.engine.directory import HEAD
from toolkit.recipe.schema import EngineLimits

Arrays = Mapping[str, NDArray[Any]]


class HeadTensors:
    """A head's tensors under the names that a decoder graph asks a checkpoint for."""

    def __init__(self, tensors: Arrays) -> None:
        self._tensors = tensors

    def names(self) -> Iterator[str]:
        return iter(self._tensors)

    def tensor(self, name: str) -> NDArray[Any]:
        return self._tensors[name]


def write_head_engine(
    model: Any,
    out: Path,
    limits: EngineLimits,
    *,
    pretrained: Mapping[str, Any],
    kind: str,
    reads: tuple[int, ...],
    arrays: Arrays,
) -> None:
    """The engine of one head into `out`, an existing directory."""
    np.savez(out / HEAD, allow_pickle=False, **arrays)
    config = engine_config(pretrained, limits, (1,))
    config["cpu"]["head"] = {"kind": kind, "reads": list(reads)}
    write_engine(model, out, config, files=(HEAD,))


def target_ids(heads: Source, draft_vocab: int) -> NDArray[np.int64]:  # [D]
    """d2t holds differences: target id = draft id + d2t[draft id]."""
    ids = np.arange(draft_vocab, dtype=np.int64)
    return ids + heads.read("d2t").astype(np.int64) if "d2t" in heads.tensors else ids


def read(heads: Source, name: str, dtype: str) -> NDArray[Any]:
    """One tensor in the engine's dtype."""
    return np.asarray(heads.read(name)).astype(np.dtype(dtype))


def joined(heads: Source, names: tuple[str, ...], dtype: str) -> NDArray[Any]:
    """Several, one below the other."""
    return np.concatenate([read(heads, name, dtype) for name in names])


def decoder_config(target: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """A head's config.json in the shape of a checkpoint's: the target's, less what is its own."""
    return {
        **json.loads(json.dumps(dict(target))),
        "architecture": "LlamaForCausalLM",
        "num_hidden_layers": 1,
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        **own,
    }
