"""Mistral 7B and its relatives: Llama's tensors, another architecture name and other defaults."""

from __future__ import annotations

from dataclasses import replace

from toolkit.checkpoint.families.llama import DECODER, DEFAULTS, LLAMA

MISTRAL = replace(
    LLAMA,
    weights=DECODER,
    defaults=DEFAULTS
    | {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": None},
    # Not a key of TensorRT-LLM's: kept so that an engine can refuse to go beyond the window.
    fields={**LLAMA.fields, "sliding_window": "sliding_window"},
    only={"attention_bias": (False,), "mlp_bias": (False,)},
)
