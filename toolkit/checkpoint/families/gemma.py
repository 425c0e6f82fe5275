"""Gemma 1: Llama's tensors; norms are stored as an offset from one; embeddings are always tied."""

from __future__ import annotations

from dataclasses import replace

from toolkit.checkpoint.families.family import Family, Place
from toolkit.checkpoint.families.llama import DECODER, DEFAULTS


def _one_added(place: Place | None) -> Place | None:
    norm = place and place.name.endswith(("layernorm.weight", "ln_f.weight"))
    return replace(place, add=1.0) if place and norm else place


GEMMA = Family(
    weights={name: _one_added(place) for name, place in DECODER.items()},
    defaults=DEFAULTS
    | {
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "head_dim": 256,
        "tie_word_embeddings": True,
    },
    fields={},
    constants={
        # Early files say "gelu"; the models were trained with, and always run, the tanh form.
        "hidden_act": "gelu_pytorch_tanh",
        "attn_bias": False,
        "mlp_bias": False,
        "qk_layernorm": False,
        "inter_layernorms": False,
    },
    only={
        "attention_bias": (False,),
        "hidden_act": ("gelu", "gelu_pytorch_tanh"),
        "hidden_activation": (None, "gelu", "gelu_pytorch_tanh"),
    },
    parallel_embedding=True,
)
