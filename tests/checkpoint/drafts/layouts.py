"""One tiny EAGLE-3 head in the four layouts that people publish, and the target it is for.

Hidden 64, intermediate 224, 4 heads and 2 KV heads of 16, 512 target and 128 draft tokens: the
ratios of the published heads for Llama-3.1-8B, in 150 kB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from toolkit.checkpoint.drafts.target import TargetFacts

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD = 64, 224, 4, 2, 16
VOCAB, DRAFT, LAYERS = 512, 128, 8
ROPE = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}
TARGET = TargetFacts(
    hidden=HIDDEN,
    vocab=VOCAB,
    layers=LAYERS,
    rope_theta=500000.0,
    rope_scaling=ROPE,
    max_position_embeddings=1024,
    dtype="float16",
)
Tensors = dict[str, NDArray[Any]]


def core(layer: str = "midlayer.") -> Tensors:
    """The tensors that all four layouts share, with every fourth target token draftable."""
    rng = np.random.default_rng(11)

    def draw(*shape: int) -> NDArray[np.float16]:
        return (rng.standard_normal(shape) * 0.1).astype(np.float16)

    q, kv, double = HEADS * HEAD, KV_HEADS * HEAD, 2 * HIDDEN
    # Draft id i stands for target id 4i, so d2t[i] = 4i - i.
    ids = np.arange(DRAFT, dtype=np.int64)
    return {
        "fc.weight": draw(HIDDEN, 3 * HIDDEN),
        f"{layer}self_attn.q_proj.weight": draw(q, double),
        f"{layer}self_attn.k_proj.weight": draw(kv, double),
        f"{layer}self_attn.v_proj.weight": draw(kv, double),
        f"{layer}self_attn.o_proj.weight": draw(HIDDEN, q),
        f"{layer}mlp.gate_proj.weight": draw(INTERMEDIATE, HIDDEN),
        f"{layer}mlp.up_proj.weight": draw(INTERMEDIATE, HIDDEN),
        f"{layer}mlp.down_proj.weight": draw(HIDDEN, INTERMEDIATE),
        f"{layer}hidden_norm.weight": draw(HIDDEN),
        f"{layer}input_layernorm.weight": draw(HIDDEN),
        f"{layer}post_attention_layernorm.weight": draw(HIDDEN),
        "norm.weight": draw(HIDDEN),
        "lm_head.weight": draw(DRAFT, HIDDEN),
        "d2t": 3 * ids,
    }


def mask() -> NDArray[np.bool_]:
    return np.arange(VOCAB) % 4 == 0


def embeddings() -> NDArray[np.float16]:
    return np.random.default_rng(12).standard_normal((VOCAB, HIDDEN)).astype(np.float16)


def llama_config(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": VOCAB,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": ROPE,
        "hidden_act": "silu",
        "torch_dtype": "float16",
        **changes,
    }


def safeailab() -> tuple[Tensors, dict[str, Any]]:
    return core() | {"t2d": mask()}, llama_config(draft_vocab_size=DRAFT, bias=False)


def specforge() -> tuple[Tensors, dict[str, Any]]:
    config = llama_config(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=DRAFT)
    return core() | {"t2d": mask(), "embed_tokens.weight": embeddings()}, config


def modelopt() -> tuple[Tensors, dict[str, Any]]:
    eagle = {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
    }
    config = llama_config(
        architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=DRAFT, eagle_config=eagle
    )
    return core("layers.0."), config


def speculators() -> tuple[Tensors, dict[str, Any]]:
    inner = llama_config(
        rope_parameters={**ROPE, "rope_theta": 500000.0}, rope_theta=None, rope_scaling=None
    )
    config = {
        "architectures": ["Eagle3Speculator"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "draft_vocab_size": DRAFT,
        # One more than TensorRT-LLM's: numbered by the layer that reads the state.
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "norm_before_residual": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "org/target"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.4.0",
        "target_hidden_size": None,
        "torch_dtype": "float16",
        "transformer_layer_config": inner,
    }
    return core("layers.0.") | {"t2d": mask(), "embed_tokens.weight": embeddings()}, config


LAYOUTS = {
    "SafeAILab": safeailab,
    "SpecForge": specforge,
    "ModelOpt": modelopt,
    "speculators": speculators,
}


def write(
    directory: Path,
    tensors: Mapping[str, NDArray[Any]],
    config: Mapping[str, Any],
    file: str = "model.safetensors",
) -> str:
    """A directory as one finds it on the hub; `.bin` is written by PyTorch."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    if file.endswith(".safetensors"):
        save_file(dict(tensors), directory / file)
    else:
        import torch

        torch.save({n: torch.from_numpy(t) for n, t in tensors.items()}, directory / file)
    return str(directory)
