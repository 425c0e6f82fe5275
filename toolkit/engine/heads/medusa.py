"""Medusa heads as an engine of backend `cpu`: one small graph on the target's last state.

Besides the published layout (checkpoint/heads/medusa.py), heads may share the target's lm_head:
`{h}.{layers}.weight` is absent from all of them, and `d2t` says which of its rows are drafted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.heads.combine import head_problems
from toolkit.checkpoint.heads.head import HeadPlan
from toolkit.checkpoint.heads.medusa import count_heads, head_tensors, wrong_count
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.read import LM_HEAD, Checkpoint
from toolkit.engine.heads.head_engine import (
    HeadTensors,
    decoder_config,
    read,
    target_ids,
    write_head_engine,
)
from toolkit.engine.weights import Weights
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import EngineLimits


@dataclass(frozen=True)
class MedusaForm:
    """How a file holds its heads."""

    count: int
    layers: int  # residual ones, of each
    prefix: str  # of every name
    shared: bool  # lm_head is the target's
    ids: NDArray[np.int64]  # [D] the target's token for each that they draft


def build(
    heads: Source, target: Checkpoint, out: Path, limits: EngineLimits, reads: tuple[int, ...]
) -> None:
    """Write the heads' engine: final hidden states [B, H] -> logits [B, heads, D]."""
    form, problems = read_form(heads, target.config)
    if problems:
        raise CheckpointError(heads.name, problems)
    count, layers, prefix, shared = form.count, form.layers, form.prefix, form.shared
    dtype = target.config["dtype"]
    tensors: dict[str, NDArray[Any]] = {}
    for h in range(count):
        for layer in range(layers):
            for kind in ("weight", "bias"):
                name = f"{prefix}{h}.{layer}.linear.{kind}"
                tensors[f"{h}.{layer}.{kind}"] = read(heads, name, dtype)
        if not shared:
            tensors[f"{h}.lm_head"] = read(heads, f"{prefix}{h}.{layers}.weight", dtype)
    if shared:
        tensors["lm_head"] = target.tensor(LM_HEAD)[form.ids]
    pretrained = decoder_config(target.config, vocab_size=len(form.ids))
    write_head_engine(
        _graph(Weights(HeadTensors(tensors), int8=False), count, layers, shared),
        out,
        limits,
        pretrained=pretrained,
        kind="medusa",
        reads=reads,
        arrays={"target_ids": form.ids},
    )


def _graph(weights: Weights, count: int, layers: int, shared: bool) -> Any:
    """x + silu(W x + b) in each residual layer, then an lm_head (Cai et al. 2024, section 2.1)."""
    from openvino import Model
    from openvino import opset13 as op

    hidden = op.parameter([-1, -1], np.float32)  # [B, H]
    hidden.output(0).get_tensor().set_names({"hidden"})
    one = op.constant(np.array([1], np.int64))
    states = []
    for h in range(count):
        x = hidden
        for layer in range(layers):
            y = op.matmul(x, weights.linear(f"{h}.{layer}.weight"), False, True)
            x = op.add(x, op.swish(op.add(y, weights.vector(f"{h}.{layer}.bias"))))
        if not shared:
            x = op.matmul(x, weights.linear(f"{h}.lm_head"), False, True)
        states.append(op.unsqueeze(x, one))
    logits = op.concat(states, 1)  # [B, heads, H or D]
    if shared:  # one matrix for all of them is read once
        logits = op.matmul(logits, weights.linear("lm_head"), False, True)
    result = op.result(logits)
    result.output(0).get_tensor().set_names({"logits"})
    return Model([result], [hidden], "MedusaHeads")


def read_form(heads: Source, target: Mapping[str, Any]) -> tuple[MedusaForm, list[str]]:
    """What the file holds, and all that is wrong with it; `target` is its config.json."""
    count, layers = count_heads(heads)
    prefix = "medusa_heads." if any(n.startswith("medusa_heads.") for n in heads.tensors) else ""
    shared = not any(f"{prefix}{h}.{layers}.weight" in heads.tensors for h in range(count))
    vocab = int(target["vocab_size"])
    problems = [*_problems(heads, target, count, layers, prefix, shared)]
    mapped = "d2t" in heads.tensors and not problems
    draft_vocab = heads.tensors["d2t"].shape[0] if mapped else vocab
    ids = target_ids(heads, draft_vocab) if mapped else np.arange(vocab)
    if ids.min() < 0 or ids.max() >= vocab or len(np.unique(ids)) != len(ids):
        problems.append(f"d2t: does not name {draft_vocab} different tokens of {vocab}")
    return MedusaForm(count, layers, prefix, shared, ids), problems


def _problems(
    heads: Source, target: Mapping[str, Any], count: int, layers: int, prefix: str, shared: bool
) -> Iterator[str]:
    """Missing, of another shape or dtype; heads of another target show here."""
    vocab = int(target["vocab_size"])
    base = {**target, "mapping": {"tp_size": 1, "pp_size": 1}}  # one engine, whatever tp
    wanted = head_tensors(prefix, count, layers, base)
    plan = HeadPlan(
        config={},
        tensors=tuple(t for t in wanted if not (shared and t.name.endswith("lm_head.weight"))),
        dropped=frozenset({"d2t"}),
        problems=tuple(wrong_count(heads, count, layers, count)),
    )
    yield from head_problems(plan, heads, base)
    d2t = heads.tensors.get("d2t")
    if d2t is not None and (len(d2t.shape) != 1 or not 0 < d2t.shape[0] <= vocab):
        yield f"d2t: has shape {list(d2t.shape)}, expected at most {vocab} entries"
    elif d2t is not None and not shared and d2t.shape[0] != vocab:
        yield (
            f"d2t: has {d2t.shape[0]} entries, each head's lm_head has {vocab} rows; they must be "
            "equal"
        )
