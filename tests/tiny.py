"""Tiny random Hugging Face checkpoints of every family, seeded and written without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INTERMEDIATE, VOCAB = 64, 2, 4, 2, 16, 128, 250
LLAMA3_ROPE = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
}
DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


def hf_config(family: str, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model; keyword arguments replace or add keys."""
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if family in ("llama", "mistral", "qwen3", "gemma"):
        config["head_dim"] = HEAD
    if family == "gemma":
        config |= {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
        config["tie_word_embeddings"] = True
    return config | changes


def hf_tensors(
    config: Mapping[str, Any], seed: int = 0, scale: float = 0.3
) -> dict[str, NDArray[np.float32]]:
    """Random weights under Hugging Face's names, float32."""
    rng = np.random.default_rng(seed)
    family = config["model_type"]
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    vocab = config["vocab_size"]

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    def norm(size: int) -> NDArray[np.float32]:
        around = 0.0 if family == "gemma" else 1.0
        return (around + rng.standard_normal(size) * 0.1).astype(np.float32)

    def bias(size: int) -> NDArray[np.float32]:
        return (rng.standard_normal(size) * 0.1).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(vocab, hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm.weight": norm(hidden),
            "self_attn.q_proj.weight": matrix(q, hidden),
            "self_attn.k_proj.weight": matrix(kv, hidden),
            "self_attn.v_proj.weight": matrix(kv, hidden),
            "self_attn.o_proj.weight": matrix(hidden, q),
            "post_attention_layernorm.weight": norm(hidden),
            "mlp.gate_proj.weight": matrix(inter, hidden),
            "mlp.up_proj.weight": matrix(inter, hidden),
            "mlp.down_proj.weight": matrix(hidden, inter),
        }
        if family == "qwen2" or config.get("attention_bias"):
            layer |= {
                "self_attn.q_proj.bias": bias(q),
                "self_attn.k_proj.bias": bias(kv),
                "self_attn.v_proj.bias": bias(kv),
            }
        if config.get("attention_bias"):
            layer["self_attn.o_proj.bias"] = bias(hidden)
        if config.get("mlp_bias"):
            layer |= {
                "mlp.gate_proj.bias": bias(inter),
                "mlp.up_proj.bias": bias(inter),
                "mlp.down_proj.bias": bias(hidden),
            }
        if family == "qwen3":
            layer |= {"self_attn.q_norm.weight": norm(head), "self_attn.k_norm.weight": norm(head)}
        tensors |= {f"model.layers.{i}.{name}": value for name, value in layer.items()}
    tensors["model.norm.weight"] = norm(hidden)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(vocab, hidden)
    return tensors


def write_checkpoint(
    directory: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
    tensors: Mapping[str, NDArray[Any]] | None = None,
    scale: float = 0.3,
    **changes: Any,
) -> Path:
    """A whole model directory: config.json, safetensors (sharded by index if asked), tokenizer."""
    config = hf_config(family, torch_dtype=dtype, **changes)
    tensors = hf_tensors(config, seed, scale) if tensors is None else tensors
    stored = {name: value.astype(DTYPES[dtype]) for name, value in tensors.items()}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    if shards == 1:
        save_file(stored, directory / "model.safetensors")
    else:
        _write_shards(directory, stored, shards)
    write_tokenizer(directory, config["vocab_size"])
    return directory


def _write_shards(directory: Path, tensors: Mapping[str, NDArray[Any]], shards: int) -> None:
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[number::shards]
        save_file({name: tensors[name] for name in mine}, directory / file)
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def noisy(
    tensors: Mapping[str, NDArray[np.float32]], noise: float, seed: int = 1
) -> dict[str, NDArray[np.float32]]:
    """A draft for the model of `tensors`: the more noise, the fewer accepted tokens."""
    rng = np.random.default_rng(seed)
    return {
        name: (value + noise * value.std() * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in tensors.items()
    }


def write_tokenizer(directory: Path, vocab_size: int = VOCAB) -> None:
    """A byte-level BPE whose ids are all below `vocab_size`: <s>, </s>, ASCII, a few merges.

    Bytes without an id are dropped, so encode any text, but expect only ASCII back.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ascii_first = [c for c in alphabet if ord(c) < 128] + ["Ġ", "Ċ", "ĉ", "č"]
    tokens = ["<s>", "</s>", *ascii_first]
    merges = []
    for pair in [("t", "h"), ("th", "e"), ("Ġ", "a"), ("i", "n"), ("Ġ", "the"), ("a", "n")]:
        if len(tokens) < vocab_size:
            merges.append(pair)
            tokens.append("".join(pair))
    tokens += [f"<unused{i}>" for i in range(vocab_size - len(tokens))]
    vocab = {token: index for index, token in enumerate(tokens[:vocab_size])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>")])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "model_max_length": 256}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
