"""Tiny GGUF files, stored the way llama.cpp stores each architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.tiny import hf_config, hf_tensors

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def stored_rows(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Row 2i of a head is its row i, row 2i + 1 its row head/2 + i: the other rotary convention."""
    head = len(weight) // heads
    order = [h * head + half * head // 2 + i
             for h in range(heads) for i in range(head // 2) for half in (0, 1)]  # fmt: skip
    return weight[order]


def write_gguf(
    path: Path,
    family: str = "llama",
    *,
    quantized: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, NDArray[Any]] | None = None,
    **changes: Any,
) -> dict[str, NDArray[np.float32]]:
    """Write the file and return its tensors under Hugging Face's names.

    `quantized` is GGUF name -> GGMLQuantizationType; `metadata` and `extra` add pairs and tensors.
    """
    import gguf

    config = hf_config(family, **changes)
    tensors = hf_tensors(config)
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if family == "qwen3":  # its heads are not hidden size / heads
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    for key, value in (metadata or {}).items():
        _add(writer, key, value)
    for name, value in tensors.items():
        stored = value
        if "q_proj" in name and family == "llama":
            stored = stored_rows(value, config["num_attention_heads"])
        if "k_proj" in name and family == "llama":
            stored = stored_rows(value, config["num_key_value_heads"])
        kind = (quantized or {}).get(gguf_name(name))
        if kind is not None:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(stored, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(stored))
    for name, value in (extra or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def gguf_name(name: str) -> str:
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in outer:
        return outer[name]
    _, _, layer, inner = name.split(".", 3)
    stem, _, kind = inner.rpartition(".")
    return f"blk.{layer}.{LAYER_NAMES[stem]}.{kind}"


def _add(writer: Any, key: str, value: Any) -> None:
    adders = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32,
              float: writer.add_float32, list: writer.add_array}  # fmt: skip
    adders[type(value)](key, value)
