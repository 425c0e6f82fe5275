"""Qwen 3 (dense): no q, k, v bias unless asked for, and a norm on every query and key head."""

from __future__ import annotations

from toolkit.checkpoint.families.family import Family, Place
from toolkit.checkpoint.families.llama import DECODER, DEFAULTS, OTHER_BIAS, QKV_BIAS
from toolkit.checkpoint.families.qwen2 import CONSTANTS

QK_NORM: dict[str, Place | None] = {
    "model.layers.{i}.self_attn.q_norm.weight": Place(
        name="transformer.layers.{i}.attention.q_layernorm.weight", shape=("head",)
    ),
    "model.layers.{i}.self_attn.k_norm.weight": Place(
        name="transformer.layers.{i}.attention.k_layernorm.weight", shape=("head",)
    ),
}

QWEN3 = Family(
    weights=DECODER | QK_NORM | QKV_BIAS | OTHER_BIAS,
    defaults=DEFAULTS
    | {"max_position_embeddings": 32768, "head_dim": 128, "use_sliding_window": False},
    fields={
        "hidden_act": "hidden_act",
        "attn_bias": "attention_bias",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    constants=CONSTANTS | {"qk_layernorm": True, "qwen_type": "qwen3"},
    only={"use_sliding_window": (False,)},
)
