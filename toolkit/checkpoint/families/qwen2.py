"""Qwen 2 and 2.5: Llama's tensors and a bias on q, k and v."""

from __future__ import annotations

from toolkit.checkpoint.families.family import Family
from toolkit.checkpoint.families.llama import DECODER, DEFAULTS, NO_EXPERTS, QKV_BIAS

CONSTANTS = {
    "mlp_bias": False,
    "seq_length": 8192,  # TensorRT-LLM's default; only its logn attention, which is off, reads it
    "use_logn_attn": False,
    "disable_weight_only_quant_plugin": False,
    "num_labels": 1,
    "moe": NO_EXPERTS | {"normalization_mode": 0},
    "moe_intermediate_size": 0,
    "moe_shared_expert_intermediate_size": 0,
}

QWEN2 = Family(
    weights=DECODER | QKV_BIAS,
    defaults=DEFAULTS | {"max_position_embeddings": 32768, "use_sliding_window": False},
    fields={"hidden_act": "hidden_act", "tie_word_embeddings": "tie_word_embeddings"},
    constants=CONSTANTS | {"attn_bias": True, "qk_layernorm": False, "qwen_type": "qwen2"},
    only={"use_sliding_window": (False,)},
)
