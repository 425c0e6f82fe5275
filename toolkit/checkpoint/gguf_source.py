"""A GGUF file as a source: Hugging Face names, config and tokenizer made from its metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.gguf_file import GgufTensor, read_gguf_header
from toolkit.checkpoint.gguf_tokenizer import tokenizer_from_gguf
from toolkit.checkpoint.interfaces import ALL, Source, TensorInfo
from toolkit.errors import CheckpointError

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.{i}.attn_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "blk.{i}.attn_q.weight": "model.layers.{i}.self_attn.q_proj.weight",
    "blk.{i}.attn_k.weight": "model.layers.{i}.self_attn.k_proj.weight",
    "blk.{i}.attn_v.weight": "model.layers.{i}.self_attn.v_proj.weight",
    "blk.{i}.attn_q.bias": "model.layers.{i}.self_attn.q_proj.bias",
    "blk.{i}.attn_k.bias": "model.layers.{i}.self_attn.k_proj.bias",
    "blk.{i}.attn_v.bias": "model.layers.{i}.self_attn.v_proj.bias",
    "blk.{i}.attn_q_norm.weight": "model.layers.{i}.self_attn.q_norm.weight",
    "blk.{i}.attn_k_norm.weight": "model.layers.{i}.self_attn.k_norm.weight",
    "blk.{i}.attn_output.weight": "model.layers.{i}.self_attn.o_proj.weight",
    "blk.{i}.ffn_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "blk.{i}.ffn_gate.weight": "model.layers.{i}.mlp.gate_proj.weight",
    "blk.{i}.ffn_up.weight": "model.layers.{i}.mlp.up_proj.weight",
    "blk.{i}.ffn_down.weight": "model.layers.{i}.mlp.down_proj.weight",
}
CONFIG = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "head_dim": "attention.key_length",
}


@dataclass(frozen=True)
class _Dialect:
    """How llama.cpp stores one architecture."""

    architecture: str
    # q and k rows are stored with the two halves of every head interleaved
    interleaved: bool = False


DIALECTS = {
    "llama": _Dialect("LlamaForCausalLM", interleaved=True),
    "qwen2": _Dialect("Qwen2ForCausalLM"),
    "qwen3": _Dialect("Qwen3ForCausalLM"),
}
_PLAIN: dict[str, np.dtype[Any]] = {  # everything else is dequantised to float32
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
# The frequency table of Llama 3.1 and later, which Hugging Face keeps as numbers in config.json.
_ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LAYER = re.compile(r"^blk\.(\d+)\.")


class GgufSource(Source):
    """Tensors are dequantised to float32 when they are read, row by row."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        from gguf.constants import GGML_QUANT_SIZES

        self.path = path
        self.name = name or str(path)
        header = read_gguf_header(path, {int(k): v for k, v in GGML_QUANT_SIZES.items()})
        self._metadata = header.metadata
        self._dialect = self._find_dialect()
        self._spans = self._rename(header.tensors)
        self.tensors = {
            name: TensorInfo(name, span.shape, self._dtype(span).name)
            for name, span in self._spans.items()
        }
        self.config = self._make_config(header.tensors)

    def read(self, name: str, rows: slice = ALL, columns: slice = ALL) -> NDArray[Any]:
        span = self._spans[name]
        first, last, _ = rows.indices(span.shape[0])
        if len(span.shape) == 1:
            found = self._stored(span, 0, 1)[0]
            return (_natural(found, self._head(name)) if self._mixed(name) else found)[first:last]
        if not self._mixed(name):
            return self._stored(span, first, last)[:, columns]
        head = self._head(name)
        low, high = first // head * head, -(-last // head) * head
        return _natural(self._stored(span, low, high), head)[first - low : last - low, columns]

    def tokenizer_files(self, out: Path) -> None:
        tokenizer_from_gguf(self._metadata, out, self.name)

    def _stored(self, span: GgufTensor, first: int, last: int) -> NDArray[Any]:
        """Rows as the file has them, as numbers; a vector is one row."""
        from gguf import GGMLQuantizationType, quants

        with self.path.open("rb") as file:
            file.seek(span.start + first * span.row_bytes)
            data = np.frombuffer(file.read((last - first) * span.row_bytes), np.uint8)
        rows = data.reshape(last - first, span.row_bytes)
        kind = GGMLQuantizationType(span.kind)
        if kind.name in _PLAIN:
            return rows.view(self._dtype(span))
        values: NDArray[Any] = quants.dequantize(rows, kind)
        return values

    def _dtype(self, span: GgufTensor) -> np.dtype[Any]:
        from gguf import GGMLQuantizationType

        kind = GGMLQuantizationType(span.kind).name
        return _PLAIN.get(kind, np.dtype(np.float32))

    def _mixed(self, name: str) -> bool:
        return self._dialect.interleaved and ("q_proj" in name or "k_proj" in name)

    def _head(self, name: str) -> int:
        key = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
        return int(self._spans[name].shape[0] // self.config[key])

    def _find_dialect(self) -> _Dialect:
        found = self._metadata.get("general.architecture")
        if not isinstance(found, str) or found not in DIALECTS:
            raise CheckpointError(
                self.name,
                [f"general.architecture {found!r} is not supported ({', '.join(DIALECTS)} are)"],
            )
        return DIALECTS[found]

    def _rename(self, stored: Mapping[str, GgufTensor]) -> dict[str, GgufTensor]:
        from gguf import GGMLQuantizationType, quants

        spans, problems = {}, []
        for name, span in stored.items():
            layer = _LAYER.match(name)
            pattern = _LAYER.sub("blk.{i}.", name)
            kind = GGMLQuantizationType(span.kind)
            if name == _ROPE_FACTORS:
                continue
            if pattern not in NAMES:
                problems.append(f"{name}: no such tensor in this architecture")
            elif len(span.shape) > 2:
                problems.append(f"{name}: has {len(span.shape)} dimensions, expected 1 or 2")
            elif kind.name not in _PLAIN and kind not in quants._type_traits:
                problems.append(f"{name}: type {kind.name} cannot be dequantised")
            else:
                spans[NAMES[pattern].format(i=layer[1] if layer else "")] = span
        if problems:
            raise CheckpointError(self.name, problems)
        return spans

    def _make_config(self, stored: Mapping[str, GgufTensor]) -> dict[str, Any]:
        kind = self._metadata["general.architecture"]
        config: dict[str, Any] = {"architectures": [self._dialect.architecture]}
        for key, name in CONFIG.items():
            if f"{kind}.{name}" in self._metadata:
                config[key] = self._metadata[f"{kind}.{name}"]
        # float32 in the file: 9.999999747378752e-06 was 1e-05 when somebody wrote it
        for key in ("rms_norm_eps", "rope_theta"):
            if isinstance(config.get(key), float):
                config[key] = float(str(np.float32(config[key])))
        if "token_embd.weight" in stored:
            config["vocab_size"] = stored["token_embd.weight"].shape[0]
        config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
        config["tie_word_embeddings"] = "output.weight" not in stored
        config["rope_scaling"] = self._rope_scaling(stored.get(_ROPE_FACTORS), config)
        for key, name in {"bos_token_id": "bos", "eos_token_id": "eos"}.items():
            config[key] = self._metadata.get(f"tokenizer.ggml.{name}_token_id")
        self._refuse_unusable(config)
        return config

    def _refuse_unusable(self, config: Mapping[str, Any]) -> None:
        """What would be read wrongly: head counts undo the row order, every pair must rotate."""
        kind = self._metadata["general.architecture"]
        heads, kv_heads = (
            config.get(key) for key in ("num_attention_heads", "num_key_value_heads")
        )
        problems = [
            f"{kind}.{name} is {found!r}, expected a positive integer"
            for name, found in {"attention.head_count": heads,
                                "attention.head_count_kv": kv_heads}.items()
            if not isinstance(found, int) or found < 1
        ]  # fmt: skip
        if not problems and isinstance(config.get("hidden_size"), int):
            head = config.get("head_dim", config["hidden_size"] // heads)
            for name in ("rope.dimension_count", "attention.value_length"):
                found = self._metadata.get(f"{kind}.{name}", head)
                if found != head:
                    problems.append(f"{kind}.{name} is {found}; only heads of {head} all through")
        if problems:
            raise CheckpointError(self.name, problems)

    def _rope_scaling(
        self, factors: GgufTensor | None, config: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Scaling in Hugging Face's words, or an error rather than other positions."""
        kind = self._metadata["general.architecture"]
        scaling = self._metadata.get(f"{kind}.rope.scaling.type", "none")
        factor = self._metadata.get(f"{kind}.rope.scaling.factor")
        if scaling == "linear" and isinstance(factor, (int, float)):
            return {"rope_type": "linear", "factor": factor}
        if scaling != "none":
            raise CheckpointError(
                self.name, [f"rope.scaling.type {scaling!r} with factor {factor!r}: not supported"]
            )
        if factors is None or not isinstance(config.get("rope_theta"), float):
            return None
        found = self._stored(factors, 0, 1)[0]
        guess = {**_LLAMA3, "factor": float(found.max())}
        wanted = _llama3_factors(guess, config["rope_theta"], found.size)
        if not np.allclose(found, wanted, rtol=1e-4):
            raise CheckpointError(self.name, [f"{_ROPE_FACTORS}: not Llama 3's frequency table"])
        return guess


def _natural(stored: NDArray[Any], head: int) -> NDArray[Any]:
    """Undo llama.cpp's row order: [heads, half, 2, ...] back to [heads, 2, half, ...]."""
    pairs = stored.reshape(-1, head // 2, 2, *stored.shape[1:])
    return np.swapaxes(pairs, 1, 2).reshape(stored.shape)


def _llama3_factors(scaling: Mapping[str, Any], theta: float, pairs: int) -> NDArray[np.float64]:
    """How much longer each rotary wave becomes: 1 for short ones, `factor` for long ones."""
    wave = 2 * np.pi * theta ** (np.arange(pairs) / pairs)
    turns = scaling["original_max_position_embeddings"] / wave
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors: NDArray[np.float64] = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    return factors
