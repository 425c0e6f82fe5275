"""Llama 2, 3, 3.1, 3.2 and everything built like them (SmolLM2, TinyLlama, ...)."""

from __future__ import annotations

from typing import Any

from toolkit.checkpoint.families.family import Family, Place

_HF = "model.layers.{i}."
_TRT = "transformer.layers.{i}."

DECODER: dict[str, Place | None] = {
    "model.embed_tokens.weight": Place(
        name="transformer.vocab_embedding.weight",
        shape=("vocab", "hidden"),
        split="embedding",
        first=True,
    ),
    _HF + "input_layernorm.weight": Place(name=_TRT + "input_layernorm.weight", shape=("hidden",)),
    _HF + "self_attn.q_proj.weight": Place(
        name=_TRT + "attention.qkv.weight", shape=("q", "hidden"), split="rows"
    ),
    _HF + "self_attn.k_proj.weight": Place(
        name=_TRT + "attention.qkv.weight", shape=("kv", "hidden"), split="kv_heads"
    ),
    _HF + "self_attn.v_proj.weight": Place(
        name=_TRT + "attention.qkv.weight", shape=("kv", "hidden"), split="kv_heads"
    ),
    _HF + "self_attn.o_proj.weight": Place(
        name=_TRT + "attention.dense.weight", shape=("hidden", "q"), split="columns"
    ),
    _HF + "post_attention_layernorm.weight": Place(
        name=_TRT + "post_layernorm.weight", shape=("hidden",)
    ),
    # TensorRT-LLM's `fc` is the half that goes through the activation, its `gate` the other.
    _HF + "mlp.gate_proj.weight": Place(
        name=_TRT + "mlp.fc.weight", shape=("intermediate", "hidden"), split="rows"
    ),
    _HF + "mlp.up_proj.weight": Place(
        name=_TRT + "mlp.gate.weight", shape=("intermediate", "hidden"), split="rows"
    ),
    _HF + "mlp.down_proj.weight": Place(
        name=_TRT + "mlp.proj.weight", shape=("hidden", "intermediate"), split="columns"
    ),
    "model.norm.weight": Place(name="transformer.ln_f.weight", shape=("hidden",)),
    "lm_head.weight": Place(
        name="lm_head.weight",
        shape=("said", "hidden"),
        split="vocab",
        tied_to="model.embed_tokens.weight",
    ),
    # Of a draft that says some tokens only, as EAGLE-3 has it: see drafts/vocabulary.py.
    "d2t": Place(name="d2t", shape=("said",), when="lm_head_rows", dtype="int64"),
    _HF + "self_attn.rotary_emb.inv_freq": None,
    "model.rotary_emb.inv_freq": None,
}

QKV_BIAS: dict[str, Place | None] = {
    _HF + "self_attn.q_proj.bias": Place(
        name=_TRT + "attention.qkv.bias", shape=("q",), split="rows", when="attn_bias"
    ),
    _HF + "self_attn.k_proj.bias": Place(
        name=_TRT + "attention.qkv.bias", shape=("kv",), split="kv_heads", when="attn_bias"
    ),
    _HF + "self_attn.v_proj.bias": Place(
        name=_TRT + "attention.qkv.bias", shape=("kv",), split="kv_heads", when="attn_bias"
    ),
}

# Biases of column-split layers are added once, after the sum over ranks: every rank has them whole.
OTHER_BIAS: dict[str, Place | None] = {
    _HF + "self_attn.o_proj.bias": Place(
        name=_TRT + "attention.dense.bias", shape=("hidden",), when="attn_bias"
    ),
    _HF + "mlp.gate_proj.bias": Place(
        name=_TRT + "mlp.fc.bias", shape=("intermediate",), split="rows", when="mlp_bias"
    ),
    _HF + "mlp.up_proj.bias": Place(
        name=_TRT + "mlp.gate.bias", shape=("intermediate",), split="rows", when="mlp_bias"
    ),
    _HF + "mlp.down_proj.bias": Place(
        name=_TRT + "mlp.proj.bias", shape=("hidden",), when="mlp_bias"
    ),
}

DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "lm_head_rows": None,
    "attention_bias": False,
    "mlp_bias": False,
}

NO_EXPERTS: dict[str, Any] = {
    "num_experts": 0,
    "shared_expert_intermediate_size": 0,
    "top_k": 0,
    "normalization_mode": None,
    "sparse_mixer_epsilon": 0.01,
    "tp_mode": 0,
    "device_limited_n_group": 0,
    "device_limited_topk_group": 0,
    "device_limited_routed_scaling_factor": 1.0,
}

LLAMA = Family(
    weights=DECODER | QKV_BIAS | OTHER_BIAS,
    defaults=DEFAULTS,
    fields={
        "hidden_act": "hidden_act",
        "attn_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
        "tie_word_embeddings": "tie_word_embeddings",
        # Not a key of TensorRT-LLM's, which refuses such a model before it is built.
        "lm_head_rows": "lm_head_rows",
    },
    constants={
        "qk_layernorm": False,
        "residual_mlp": False,
        "disable_weight_only_quant_plugin": False,
        "moe": NO_EXPERTS,
        "remove_duplicated_kv_heads": False,
        "fc_after_embed": False,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "layer_idx_offset": 0,
    },
)
