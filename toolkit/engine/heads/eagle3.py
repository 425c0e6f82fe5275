"""An EAGLE-3 head as an engine of backend `cpu`: any layout that checkpoint/drafts reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.checkpoint.drafts.eagle3 import DraftPlan, Eagle3Form, plan_eagle3
from toolkit.checkpoint.drafts.target import converted_target_facts
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.read import EMBEDDING, LM_HEAD, Checkpoint
from toolkit.engine.heads.graphs import Eagle3Graph
from toolkit.engine.heads.head_engine import (
    HeadTensors,
    decoder_config,
    joined,
    read,
    target_ids,
    write_head_engine,
)
from toolkit.engine.settings import decoder_settings
from toolkit.engine.weights import Weights
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import EngineLimits
from toolkit.speculation.drafters.eagle3 import default_layers

_LAYER = "transformer.layers.0."
_NAMES = {
    "attention.dense": ("self_attn.o_proj",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    # TensorRT-LLM's `fc` is the gate projection, its `gate` the up projection.
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
    "input_layernorm": ("input_layernorm",),
    "hidden_norm": ("hidden_norm",),
    "post_layernorm": ("post_attention_layernorm",),
}


def build(
    heads: Source, target: Checkpoint, out: Path, limits: EngineLimits, reads: tuple[int, ...]
) -> None:
    """Write the head's engine; `reads` are the layers that the target's engine captures."""
    facts = converted_target_facts(target.config)
    plan = plan_eagle3(heads, facts, Eagle3Form(layer="layers.0."))
    problems = [*plan.problems]
    wanted = plan.captured_layers or default_layers(facts.layers)
    if not problems and tuple(wanted) != tuple(reads):
        problems.append(
            f"config.json: the head reads the target's layers {list(wanted)}, the recipe captures "
            f"{list(reads)}; set speculation.eagle3_layers_to_capture to {list(wanted)}"
        )
    if problems:
        raise CheckpointError(heads.name, problems)
    dtype = target.config["dtype"]
    source = plan.tensors  # name that TensorRT-LLM reads -> name in the file
    tensors = {}
    for ours, theirs in _NAMES.items():
        for kind in ("weight", "bias"):
            names = tuple(source.get(f"layers.0.{name}.{kind}", "") for name in theirs)
            if all(names):
                tensors[f"{_LAYER}{ours}.{kind}"] = joined(heads, names, dtype)
    tensors["transformer.ln_f.weight"] = read(heads, source["norm.weight"], dtype)
    embedding = source.get("embed_tokens.weight")
    tensors[EMBEDDING] = read(heads, embedding, dtype) if embedding else target.tensor(EMBEDDING)
    own = source.get("lm_head.weight")
    tensors[LM_HEAD] = read(heads, own, dtype) if own else target.tensor(LM_HEAD)
    draft_vocab = len(tensors[LM_HEAD])
    pretrained = layer_config(plan, target.config)
    settings = decoder_settings(pretrained, heads.name)
    graph = Eagle3Graph(settings, Weights(HeadTensors(tensors), int8=False), limits.max_seq_len)
    arrays = {
        "target_ids": target_ids(heads, draft_vocab),
        "fuse.weight": read(heads, source["fc.weight"], "float32"),
    }
    if "fc.bias" in source:
        arrays["fuse.bias"] = read(heads, source["fc.bias"], "float32")
    write_head_engine(
        graph.model(),
        out,
        limits,
        pretrained=pretrained,
        kind="eagle3",
        reads=reads,
        arrays=arrays,
    )


def layer_config(plan: DraftPlan, target: Mapping[str, Any]) -> dict[str, Any]:
    """Of the head as a decoder of one layer; `target` is its target's config.json."""
    config = plan.config
    return decoder_config(
        target,
        vocab_size=config["draft_vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        num_key_value_heads=config["num_key_value_heads"],
        head_size=config["head_dim"],
        rotary_embedding_dim=None,
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        rotary_base=config["rope_theta"],
        rotary_scaling=config["rope_scaling"],
        # Rotation is relative: the head is used as far as the target, whatever it was trained on.
        max_position_embeddings=target["max_position_embeddings"],
        hidden_act=config.get("hidden_act", "silu"),
    )
