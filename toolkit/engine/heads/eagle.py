"""An EAGLE-1 or EAGLE-2 head as an engine of backend `cpu`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.checkpoint.heads.combine import head_problems
from toolkit.checkpoint.heads.eagle import EAGLE
from toolkit.checkpoint.heads.head import HeadPlan, HeadSpec
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.read import EMBEDDING, LM_HEAD, Checkpoint
from toolkit.engine.heads.graphs import EagleGraph
from toolkit.engine.heads.head_engine import HeadTensors, decoder_config, joined, write_head_engine
from toolkit.engine.settings import decoder_settings
from toolkit.engine.weights import Weights
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import EngineLimits

NET = "eagle_nets.0.drafter."
_OWN = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_size",
    "rotary_embedding_dim",
    "intermediate_size",
    "norm_epsilon",
)


def build(
    heads: Source, target: Checkpoint, out: Path, limits: EngineLimits, reads: tuple[int, ...]
) -> None:
    """Write the head's engine: what TensorRT-LLM holds once per depth is there once."""
    plan, problems = plan_head(heads, target.config)
    if problems:
        raise CheckpointError(heads.name, problems)
    dtype = target.config["dtype"]
    sources: dict[str, list[str]] = {}
    for part in plan.tensors:
        if part.source in heads.tensors:  # fc.bias may be absent: zeros
            name = part.name.removeprefix(NET).replace("layers.", "transformer.layers.", 1)
            sources.setdefault(name, []).append(part.source)
    tensors = {name: joined(heads, tuple(parts), dtype) for name, parts in sources.items()}
    own = tensors.pop("vocab_embedding.weight", None)
    tensors[EMBEDDING] = target.tensor(EMBEDDING) if own is None else own
    tensors[LM_HEAD] = target.tensor(LM_HEAD)
    pretrained = layer_config(plan, target.config)
    settings = decoder_settings(pretrained, heads.name)
    graph = EagleGraph(settings, Weights(HeadTensors(tensors), int8=False), limits.max_seq_len)
    write_head_engine(
        graph.model(),
        out,
        limits,
        pretrained=pretrained,
        kind="eagle",
        reads=reads,
        arrays={"target_ids": np.arange(len(tensors[LM_HEAD]), dtype=np.int64)},
    )


def plan_head(heads: Source, target: Mapping[str, Any]) -> tuple[HeadPlan, list[str]]:
    """What the file holds, once, and all that is wrong with it; `target` is its config.json."""
    base = {**target, "mapping": {"tp_size": 1, "pp_size": 1}}  # one engine, whatever tp
    spec = HeadSpec(kind="eagle", checkpoint=heads.name, fields={"num_eagle_layers": 1})
    plan = EAGLE.plan(heads, base, spec)
    return plan, list(head_problems(plan, heads, base))


def layer_config(plan: HeadPlan, target: Mapping[str, Any]) -> dict[str, Any]:
    """Of the head as a decoder; `target` is its target's config.json."""
    net = plan.config["eagle_net_config"]
    return decoder_config(target, **{name: net[name] for name in _OWN})
