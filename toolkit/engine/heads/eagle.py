"""An EAGLE-1 or EAGLE-2 head as an engine of backend `cpu`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from toolkit.checkpoint.heads.combine import head_problems
from toolkit.checkpoint.heads.eagle import EAGLE
from toolkit.checkpoint.heads.head import HeadSpec
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.read import EMBEDDING, LM_HEAD, Checkpoint
from toolkit.engine.heads.graphs import EagleGraph
from toolkit.engine.heads.head_engine import HeadTensors, decoder_config, joined, write_head_engine
from toolkit.engine.settings import decoder_settings
from toolkit.engine.weights import Weights
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import EngineLimits

_NET = "eagle_nets.0.drafter."
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
    base = {**target.config, "mapping": {"tp_size": 1, "pp_size": 1}}  # one engine, whatever tp
    spec = HeadSpec(kind="eagle", checkpoint=heads.name, fields={"num_eagle_layers": 1})
    plan = EAGLE.plan(heads, base, spec)
    if problems := list(head_problems(plan, heads, base)):
        raise CheckpointError(heads.name, problems)
    dtype = target.config["dtype"]
    sources: dict[str, list[str]] = {}
    for part in plan.tensors:
        if part.source in heads.tensors:  # fc.bias may be absent: zeros
            name = part.name.removeprefix(_NET).replace("layers.", "transformer.layers.", 1)
            sources.setdefault(name, []).append(part.source)
    tensors = {name: joined(heads, tuple(parts), dtype) for name, parts in sources.items()}
    own = tensors.pop("vocab_embedding.weight", None)
    tensors[EMBEDDING] = target.tensor(EMBEDDING) if own is None else own
    tensors[LM_HEAD] = target.tensor(LM_HEAD)
    net = plan.config["eagle_net_config"]
    pretrained = decoder_config(target.config, **{name: net[name] for name in _OWN})
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
