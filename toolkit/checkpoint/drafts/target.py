"""What a draft's weights are compared with: the target's sizes and rotary embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.checkpoint.config import rope
from toolkit.errors import CheckpointError

LLAMA_THETA = 10000.0  # what transformers takes where a Llama config.json says nothing
_SIZES = ("hidden_size", "vocab_size", "num_hidden_layers")


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """The numbers of a target that a draft must agree with."""

    hidden: int
    vocab: int
    layers: int
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    max_position_embeddings: int | None = None
    dtype: str | None = None


def target_facts(config: Mapping[str, Any], name: str) -> TargetFacts:
    """From Hugging Face's config.json of any architecture; a model with vision has its text part
    in `text_config`."""
    text = config.get("text_config")
    words = {**config, **text} if isinstance(text, Mapping) else config
    wrong = [
        f"config.json: {key} is {words.get(key)!r}, expected a positive integer"
        for key in _SIZES
        if not is_size(words.get(key))
    ]
    if wrong:
        raise CheckpointError(name, wrong)
    theta, scaling = rope(words, LLAMA_THETA)
    longest = words.get("max_position_embeddings")
    return TargetFacts(
        hidden=words["hidden_size"],
        vocab=words["vocab_size"],
        layers=words["num_hidden_layers"],
        rope_theta=theta,
        rope_scaling=scaling or None,
        max_position_embeddings=longest if is_size(longest) else None,
        dtype=words.get("torch_dtype") or words.get("dtype"),
    )


def converted_target_facts(config: Mapping[str, Any]) -> TargetFacts:
    """The same from the config.json of a TensorRT-LLM checkpoint."""
    return TargetFacts(
        hidden=int(config["hidden_size"]),
        vocab=int(config["vocab_size"]),
        layers=int(config["num_hidden_layers"]),
        rope_theta=float(config["rotary_base"]),
        rope_scaling=config["rotary_scaling"] or None,
        max_position_embeddings=int(config["max_position_embeddings"]),
        dtype=str(config["dtype"]),
    )


def is_size(value: Any) -> bool:
    """A positive integer of sane size."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
