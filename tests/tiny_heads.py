"""Tiny random drafting heads for the tiny targets of `tests.tiny`, in their authors' layouts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.tiny import HEAD, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, VOCAB

Tensors = dict[str, NDArray[Any]]


class _Random:
    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> NDArray[np.float16]:
        return (self._rng.standard_normal(shape) * 0.1).astype(np.float16)


def medusa(heads: int = 4, layers: int = 1, prefix: str = "", seed: int = 5) -> Tensors:
    """FasterDecoding's names; `medusa_heads.` as prefix gives ModelOpt's."""
    draw = _Random(seed)
    tensors: Tensors = {}
    for h in range(heads):
        for layer in range(layers):
            tensors[f"{prefix}{h}.{layer}.linear.weight"] = draw(HIDDEN, HIDDEN)
            tensors[f"{prefix}{h}.{layer}.linear.bias"] = draw(HIDDEN)
        tensors[f"{prefix}{h}.{layers}.weight"] = draw(VOCAB, HIDDEN)
    return tensors


def eagle(*, bias: bool = True, kv_heads: int = KV_HEADS, seed: int = 6) -> Tensors:
    """SafeAILab's names."""
    draw = _Random(seed)
    tensors: Tensors = {
        "embed_tokens.weight": draw(VOCAB, HIDDEN),
        "fc.weight": draw(HIDDEN, 2 * HIDDEN),
        "layers.0.self_attn.q_proj.weight": draw(HEADS * HEAD, HIDDEN),
        "layers.0.self_attn.k_proj.weight": draw(kv_heads * HEAD, HIDDEN),
        "layers.0.self_attn.v_proj.weight": draw(kv_heads * HEAD, HIDDEN),
        "layers.0.self_attn.o_proj.weight": draw(HIDDEN, HEADS * HEAD),
        "layers.0.post_attention_layernorm.weight": draw(HIDDEN),
        "layers.0.mlp.gate_proj.weight": draw(INTERMEDIATE, HIDDEN),
        "layers.0.mlp.up_proj.weight": draw(INTERMEDIATE, HIDDEN),
        "layers.0.mlp.down_proj.weight": draw(HIDDEN, INTERMEDIATE),
    }
    return tensors | ({"fc.bias": draw(HIDDEN)} if bias else {})


def eagle_config(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "bias": True,
        **changes,
    }


def eagle3(draft_vocab: int = 128) -> Tensors:
    """The layout of EAGLE-3's authors."""
    draw = _Random(7)
    kv = KV_HEADS * HEAD
    ids = np.arange(draft_vocab, dtype=np.int64)
    return {
        "d2t": np.zeros(draft_vocab, np.int64),
        "t2d": np.isin(np.arange(VOCAB), ids),
        "fc.weight": draw(HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": draw(HEADS * HEAD, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": draw(kv, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": draw(kv, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": draw(HIDDEN, HEADS * HEAD),
        "midlayer.mlp.gate_proj.weight": draw(INTERMEDIATE, HIDDEN),
        "midlayer.mlp.up_proj.weight": draw(INTERMEDIATE, HIDDEN),
        "midlayer.mlp.down_proj.weight": draw(HIDDEN, INTERMEDIATE),
        "midlayer.hidden_norm.weight": draw(HIDDEN),
        "midlayer.input_layernorm.weight": draw(HIDDEN),
        "midlayer.post_attention_layernorm.weight": draw(HIDDEN),
        "norm.weight": draw(HIDDEN),
        "lm_head.weight": draw(draft_vocab, HIDDEN),
    }


def eagle3_config(draft_vocab: int = 128, **changes: Any) -> dict[str, Any]:
    return eagle_config(draft_vocab_size=draft_vocab, bias=False) | changes


def redrafter(
    *, exit_dim: int = 2 * HIDDEN, rnn: bool = True, spelling: str = "lm_head", layers: int = 2
) -> Tensors:
    draw = _Random(8)
    tensors: Tensors = {}
    if exit_dim != 2 * HIDDEN:
        projection = "input_projs" if spelling == "lm_heads" else "input_proj"
        tensors[f"{projection}.weight"] = draw(exit_dim, 2 * HIDDEN)
        tensors[f"{projection}.bias"] = draw(exit_dim)
    for i in range(layers):
        tensors[f"{spelling}.{i}.linear.weight"] = draw(exit_dim, exit_dim)
        tensors[f"{spelling}.{i}.linear.bias"] = draw(exit_dim)
    tensors[f"{spelling}.{layers}.weight"] = draw(VOCAB, exit_dim)
    if rnn:
        tensors["rnn_u.weight"] = draw(HIDDEN, HIDDEN)
        tensors["rnn_u.bias"] = draw(HIDDEN)
        tensors["rnn_w.weight"] = draw(HIDDEN, HIDDEN)
    return tensors


def redrafter_config(exit_dim: int = 2 * HIDDEN, **changes: Any) -> dict[str, Any]:
    sizes = {"hidden_size": HIDDEN, "exit_dim": exit_dim, "num_draft_layers": 2, "rnn": True}
    return sizes | changes


def write_heads(
    directory: Path,
    tensors: Mapping[str, NDArray[Any]],
    config: Mapping[str, Any] | None = None,
    file: str = "model.safetensors",
) -> str:
    """A directory with the heads' weights in `file`, and config.json unless it is None."""
    directory.mkdir(parents=True, exist_ok=True)
    if file.endswith(".safetensors"):
        save_file(dict(tensors), directory / file)
    else:
        import torch

        torch.save({n: torch.from_numpy(t) for n, t in tensors.items()}, directory / file)
    if config is not None:
        (directory / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    return str(directory)
