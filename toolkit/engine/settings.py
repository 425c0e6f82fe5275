"""What the decoder graph needs to know of a checkpoint's config.json, checked all at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from toolkit.engine.rope import RopeError, inverse_frequencies
from toolkit.errors import CheckpointError, did_you_mean

# Architecture -> what embeddings are multiplied by, from the hidden size. All else that differs
# (biases, norms of query and key, Gemma's norm weights + 1) shows in the checkpoint's tensors.
EMBEDDING_SCALES: dict[str, Callable[[int], float]] = {
    "LlamaForCausalLM": lambda hidden_size: 1.0,
    "MistralForCausalLM": lambda hidden_size: 1.0,
    "Qwen2ForCausalLM": lambda hidden_size: 1.0,
    "Qwen3ForCausalLM": lambda hidden_size: 1.0,
    "GemmaForCausalLM": math.sqrt,
}
ACTIVATIONS = ("silu", "swiglu", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_tanh")
DTYPES = ("float32", "float16", "bfloat16")
QUANT_ALGOS = (None, "NO_QUANT", "W8A16")
REQUIRED = (
    "architecture",
    "dtype",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)

SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_size",
    "intermediate_size",
    "max_position_embeddings",
    "sliding_window",
)


@dataclass(frozen=True)
class DecoderSettings:
    """Sizes and choices of one decoder."""

    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    embedding_scale: float
    activation: str
    norm_epsilon: float
    max_position_embeddings: int
    inv_freq: tuple[float, ...]  # [head_size / 2]
    int8_weights: bool
    sliding_window: int | None


def decoder_settings(config: Mapping[str, Any], where: str) -> DecoderSettings:
    """Parse a checkpoint's config; everything that the cpu engine cannot run is named together."""
    wrong = [*_missing(config), *_wrong_sizes(config)]
    if wrong:
        raise CheckpointError(where, wrong)
    problems = _refused(config)
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    head_size = int(config.get("head_size") or hidden // heads)
    if config.get("rotary_embedding_dim") not in (None, head_size):
        problems.append(
            f"config.json: rotary_embedding_dim is {config['rotary_embedding_dim']}; "
            f"backend cpu rotates whole heads ({head_size})"
        )
    inv_freq = np.zeros(head_size // 2)
    try:
        inv_freq = inverse_frequencies(
            head_size, float(config.get("rotary_base") or 10000.0), config.get("rotary_scaling")
        )
    except RopeError as error:
        problems.append(f"config.json: rotary_scaling: {error}")
    if problems:
        raise CheckpointError(where, problems)
    return DecoderSettings(
        architecture=config["architecture"],
        dtype=config["dtype"],
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden,
        num_layers=int(config["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_size=head_size,
        intermediate_size=int(config["intermediate_size"]),
        embedding_scale=EMBEDDING_SCALES[config["architecture"]](hidden),
        activation=config.get("hidden_act", "silu"),
        norm_epsilon=float(config.get("norm_epsilon", 1e-5)),
        max_position_embeddings=_longest(config),
        inv_freq=tuple(inv_freq.tolist()),
        int8_weights=_quant_algo(config) == "W8A16",
        sliding_window=config.get("sliding_window"),
    )


def _missing(config: Mapping[str, Any]) -> list[str]:
    return [f"config.json: {key} is missing" for key in REQUIRED if config.get(key) is None]


def _wrong_sizes(config: Mapping[str, Any]) -> list[str]:
    problems = [
        f"config.json: {key} is {config[key]!r}, expected a positive integer"
        for key in SIZES
        if config.get(key) is not None and not is_size(config[key])
    ]
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if is_size(heads) and is_size(kv_heads) and heads % kv_heads:
        problems.append(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    return problems


def is_size(value: Any) -> TypeGuard[int]:
    """A positive integer, and not True."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _quant_algo(config: Mapping[str, Any]) -> str | None:
    algo: str | None = (config.get("quantization") or {}).get("quant_algo")
    return algo


def _longest(config: Mapping[str, Any]) -> int:
    """How far positions reach: a linear scaling stretches the trained ones, llama3 has done so."""
    scaling = config.get("rotary_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = float(scaling.get("factor", 1.0)) if kind == "linear" else 1.0
    return int(config.get("max_position_embeddings", 2048) * factor)


def _refused(config: Mapping[str, Any]) -> list[str]:
    """Choices of the checkpoint that this engine does not have, each with those it has."""
    allowed: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("architecture", config["architecture"], tuple(EMBEDDING_SCALES)),
        ("dtype", config["dtype"], DTYPES),
        ("hidden_act", config.get("hidden_act", "silu"), ACTIVATIONS),
        ("quantization.quant_algo", _quant_algo(config), QUANT_ALGOS),
        (
            "quantization.kv_cache_quant_algo",
            (config.get("quantization") or {}).get("kv_cache_quant_algo"),
            (None,),
        ),
        (
            "position_embedding_type",
            config.get("position_embedding_type", "rope_gpt_neox"),
            ("rope_gpt_neox",),
        ),
    ]
    return [
        f"config.json: {name} is {value!r}; backend cpu runs {', '.join(map(str, known))}"
        + did_you_mean(str(value), [str(one) for one in known])
        for name, value, known in allowed
        if value not in known
    ]
