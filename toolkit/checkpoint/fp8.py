"""Checkpoints that NVIDIA ModelOpt quantised to float8, in Hugging Face's layout.

hf_quant_config.json  {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", ...}}
{linear}.weight       float8_e4m3fn; times weight_scale it is the matrix
{linear}.weight_scale, .input_scale       float32, one value each
k_proj.k_scale, v_proj.v_scale            the same for the KV cache, if it is float8 too

TensorRT-LLM has one matrix for q, k and v, with one scale: the largest. A part whose own scale is
smaller is scaled over; ModelOpt gives all three the same, and then its bytes are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.families.family import Place
from toolkit.checkpoint.interfaces import ALL, Source, Stored
from toolkit.checkpoint.write import Part
from toolkit.errors import CheckpointError

QUANT_CONFIG = "hf_quant_config.json"
FLOAT8 = "float8_e4m3fn"
_SCALES = (".weight_scale", ".input_scale", ".k_scale", ".v_scale")
_LARGEST = "largest of "  # a tensor that exists only here: one value
# Scales of a matrix: TensorRT-LLM's name <- ModelOpt's.
_OF_MATRIX = {
    "weights_scaling_factor": "weight_scale",
    "activation_scaling_factor": "input_scale",
}


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What hf_quant_config.json says; empty for weights that nobody quantised."""
    found = config.get(QUANT_CONFIG)
    section = found.get("quantization") if isinstance(found, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def is_float8(config: Mapping[str, Any]) -> bool:
    """Whether the weights are ModelOpt's float8, a scale to a matrix."""
    return quantization_of(config).get("quant_algo") == "FP8"


class Float8Source(Source):
    """The same weights without their scales, which are read by what they are the scales of."""

    def __init__(self, whole: Source) -> None:
        self.name, self.config = whole.name, whole.config
        self._whole = whole
        self.tensors = {n: t for n, t in whole.tensors.items() if not n.endswith(_SCALES)}
        self._scales = {n: t for n, t in whole.tensors.items() if n.endswith(_SCALES)}
        self._joined: dict[str, tuple[str, ...]] = {}  # matrix -> all that share its scale

    def scaled(self, tensors: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
        """`tensors` with matrices in float8 and their scales beside them."""
        problems = [*self._wrong_scales(), *self._left_out(tensors)]
        if problems:
            raise CheckpointError(self.name, problems)
        found: dict[str, list[Part]] = {}
        for name, parts in tensors.items():
            if not self._is_matrix(parts):
                found[name] = parts
                continue
            sources = tuple(part.source for part in parts)
            self._joined |= dict.fromkeys(sources, sources)
            found[name] = [replace(part, dtype=FLOAT8) for part in parts]
            found |= self._factors(name, parts[0].place, sources)
        return found

    def read(self, name: str, rows: slice = ALL, columns: slice = ALL) -> NDArray[Any]:
        if name.startswith(_LARGEST):
            return np.asarray([self._largest(name.removeprefix(_LARGEST).split(" "))], np.float32)
        block = self._whole.read(name, rows, columns)
        if (factor := self._factor(name)) == 1.0:
            return block
        return (block.astype(np.float32) * factor).astype(ml_dtypes.float8_e4m3fn)

    def stored(self, name: str) -> Stored | None:
        made = name.startswith(_LARGEST) or self._factor(name) != 1.0
        return None if made else self._whole.stored(name)

    def tokenizer_files(self, out: Any) -> None:
        self._whole.tokenizer_files(out)

    def _is_matrix(self, parts: Sequence[Part]) -> bool:
        return all(self.tensors[part.source].dtype == FLOAT8 for part in parts)

    def _factors(self, name: str, place: Place, sources: Sequence[str]) -> dict[str, list[Part]]:
        """TensorRT-LLM's scales of one matrix, and of the KV cache beside q, k and v."""
        wanted = {
            factor: [f"{source.removesuffix('.weight')}.{scale}" for source in sources]
            for factor, scale in _OF_MATRIX.items()
        }
        found = {}
        stem = name.removesuffix("weight")
        for factor, scales in wanted.items():
            found[stem + factor] = [_value(place, "weight", factor, scales)]
        kv = [n for n in self._kv_scales(sources) if n in self._scales]
        if kv:
            key = name.replace("qkv.weight", "kv_cache_scaling_factor")
            found[key] = [_value(place, "qkv.weight", "kv_cache_scaling_factor", kv)]
        return found

    def _kv_scales(self, sources: Sequence[str]) -> Iterator[str]:
        for source in sources:
            for letter in ("k", "v"):
                if source.endswith(f".{letter}_proj.weight"):
                    yield source.replace(".weight", f".{letter}_scale")

    def _factor(self, name: str) -> float:
        """By how much a part's values shrink under the scale that it shares."""
        together = self._joined.get(name, ())
        if len(together) < 2:
            return 1.0
        scales = [f"{source.removesuffix('.weight')}.weight_scale" for source in together]
        own = self._largest([f"{name.removesuffix('.weight')}.weight_scale"])
        return own / self._largest(scales)

    def _largest(self, scales: Sequence[str]) -> float:
        return max(
            float(np.asarray(self._whole.read(n), np.float32).reshape(-1)[0]) for n in scales
        )

    def _wrong_scales(self) -> Iterator[str]:
        kv = quantization_of(self.config).get("kv_cache_quant_algo")
        for name, tensor in self._scales.items():
            if tensor.shape not in ((), (1,)):
                yield f"{name}: has shape {list(tensor.shape)}, expected one value for the matrix"
        for name, tensor in self.tensors.items():
            if tensor.dtype != FLOAT8:
                continue
            stem = name.removesuffix("weight")
            wanted = [stem + scale for scale in _OF_MATRIX.values()]
            wanted += list(self._kv_scales([name])) if kv else []
            for scale in wanted:
                if scale not in self._scales:
                    yield f"{scale}: missing; {QUANT_CONFIG} says that {name} has it"

    def _left_out(self, tensors: Mapping[str, list[Part]]) -> Iterator[str]:
        """Matrices of a layer that are not float8: TensorRT-LLM would take them for it."""
        for parts in tensors.values():
            for part in parts:
                matrix = "{i}" in part.place.name and len(part.shape) == 2
                if matrix and self.tensors[part.source].dtype != FLOAT8:
                    yield (
                        f"{part.source}: has dtype {self.tensors[part.source].dtype}, expected "
                        f"{FLOAT8}; checkpoints of which only some layers are quantised are not "
                        "converted"
                    )


def _value(place: Place, old: str, new: str, scales: Sequence[str]) -> Part:
    """One float32 that every rank has."""
    name = place.name.removesuffix(old) + new
    return Part(
        _LARGEST + " ".join(scales), replace(place, name=name, split="whole"), (1,), dtype="float32"
    )
