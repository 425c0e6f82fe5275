"""P8: target and draft, both KV pools and all buffers must fit into one GPU together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import ceil, prod
from typing import Any

import ml_dtypes  # noqa: F401 - numpy learns the name "float8_e4m3fn" from it
import numpy as np

from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.read import MATRIX, is_float
from toolkit.checkpoint.safetensors_file import Span
from toolkit.checkpoint.source import kind_of
from toolkit.checkpoint.split import shard, split_of
from toolkit.checkpoint.write import Part
from toolkit.engine.trtllm.command import engine_flags
from toolkit.engine.trtllm.flags import with_default
from toolkit.engine.trtllm.limits import effective_limits
from toolkit.errors import CheckpointError, InputError
from toolkit.preflight.budget import (
    GIB,
    MIB,
    RESERVED,
    Budget,
    Sizes,
    activation_bytes,
    kv_bytes_per_token,
    logits_bytes,
    make_budget,
)
from toolkit.preflight.facts import Facts, Placed
from toolkit.preflight.gpu_memory import is_known, memory_mib
from toolkit.preflight.report import Finding, findings_of

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
# Bytes of a weight that trtllm-build quantises: matrices of the layers only.
QUANTIZED = {"W8A16": 1.0, "W4A16": 0.5}
KV_ITEMSIZE = {"FP8": 1, "INT8": 1}
_MATRICES = {"qkv", "dense", "fc", "gate", "proj"}


def check(facts: Facts) -> Iterator[Finding]:
    """Refuse what cannot load or cannot hold one sequence; say what holds fewer than it should."""
    try:
        budget = budget_of(facts)
    except InputError as error:
        yield from findings_of("gpu", error)
        return
    if budget is None:
        yield from _unknown(facts)
        return
    where = f"memory of {budget.gpu}"
    if budget.free <= 0:
        yield Finding(
            where,
            f"weights and buffers take {_gib(budget.loaded + RESERVED)} ("
            + " + ".join(f"{line.sizes.role} {_gib(line.sizes.loaded)}" for line in budget.lines)
            + f" + {_gib(RESERVED)} reserved), the GPU has {_gib(budget.total)}; raise "
            "parallel.tp, quantise, or lower engine.max_batch_size or engine.max_num_tokens",
        )
    elif budget.largest_batch < 1:
        needed = sum(line.sizes.kv_per_sequence for line in budget.lines)
        yield Finding(
            where,
            f"{_gib(budget.free)} left for KV hold no sequence of engine.max_seq_len "
            f"{facts.recipe.engine.max_seq_len}, which takes {_gib(needed)}; lower "
            "engine.max_seq_len, raise parallel.tp or quantise",
        )
    elif budget.largest_batch < budget.max_batch_size:
        yield Finding(
            where,
            f"holds {budget.largest_batch} sequences of full length at once, "
            f"engine.max_batch_size is {budget.max_batch_size}; more wait for free KV blocks",
            "note",
        )


def _unknown(facts: Facts) -> Iterator[Finding]:
    """Whoever names a GPU learns why there is no budget."""
    asked = facts.gpu is not None or facts.gpu_memory is not None
    if asked and facts.away:
        away = " and ".join(facts.away)
        names = [facts.models[role].checkpoint for role in facts.away if role not in facts.small]
        small = [f"hf download {name} config.json" for name in names if kind_of(name) == "hub"]
        enough = f"; config.json is enough: {', '.join(small)}" if small and not facts.head else ""
        yield Finding("memory", f"not estimated: {away} not fetched yet{enough}", "note")


def budget_of(facts: Facts) -> Budget | None:
    """The budget, when a GPU is named and the checkpoints are whole; InputError: unknown GPU."""
    if facts.gpu_memory is not None:
        name, total = facts.gpu or f"{facts.gpu_memory:g} GiB", int(facts.gpu_memory * GIB)
    elif facts.gpu is not None:
        name, total = facts.gpu, memory_mib(facts.gpu) * MIB
    elif (named := facts.recipe.tensorrt.gpu) and is_known(named):
        name, total = named, memory_mib(named) * MIB
    else:
        return None  # an architecture like sm_90 may be named, which has any memory
    if set(facts.configs) != set(facts.models):
        return None
    try:
        checkpoints = {role: facts.placed(role) for role in facts.models}
    except CheckpointError:
        return None
    return make_budget(
        name,
        total,
        partial(_sizes, facts, checkpoints),
        facts.recipe.engine.max_batch_size,
        _kv_cache_fraction(facts),
    )


def _kv_cache_fraction(facts: Facts) -> float:
    """The backend's own section says it, where it has one."""
    section = getattr(facts.recipe, facts.recipe.backend, None)
    found: float = getattr(section, "kv_cache_fraction", facts.recipe.tensorrt.kv_cache_fraction)
    return found


def _sizes(facts: Facts, checkpoints: Mapping[str, Placed], batch: int) -> Sequence[Sizes]:
    """The engines on the first GPU, target first, built for `batch` sequences."""
    limits = facts.recipe.engine.model_copy(update={"max_batch_size": batch})
    recipe = facts.recipe.model_copy(update={"engine": limits})
    found = []
    for role, checkpoint in checkpoints.items():
        flags = engine_flags(recipe, role)
        made = effective_limits(flags, facts.release, checkpoint.config)
        itemsize = ITEMSIZE[checkpoint.config["dtype"]]
        kv = str((checkpoint.config.get("quantization") or {}).get("kv_cache_quant_algo"))
        block = int(with_default(flags, "tokens_per_block", facts.release) or 64)
        found.append(
            Sizes(
                role=role,
                weights=_weights(checkpoint),
                activations=activation_bytes(checkpoint.config, made.max_num_tokens, itemsize),
                logits=logits_bytes(checkpoint.config, batch, made.max_draft_len),
                kv_per_token=kv_bytes_per_token(checkpoint.config, KV_ITEMSIZE.get(kv, itemsize)),
                tokens_per_sequence=ceil(made.max_seq_len / block) * block,
            )
        )
    if facts.heads is not None and facts.head is None:
        found.append(_loaded_as_they_are(facts.heads, found[0]))
    return found


def _loaded_as_they_are(heads: Source, target: Sizes) -> Sizes:
    """Heads that nobody converts: their file, and a KV cache of their own layers."""
    numbers = {
        key: value if isinstance(value, int) else 0
        for key, value in heads.config.items()
        if key in ("num_hidden_layers", "num_key_value_heads", "head_dim", "hidden_size",
                   "num_attention_heads")
    }  # fmt: skip
    attention = numbers.get("num_attention_heads") or 1
    size = numbers.get("head_dim") or numbers.get("hidden_size", 0) // attention
    kv_heads = numbers.get("num_key_value_heads") or attention
    return Sizes(
        role="heads",
        weights=sum(prod(t.shape) * np.dtype(t.dtype).itemsize for t in heads.tensors.values()),
        activations=0,  # smaller than the target's, whose memory they use in turn
        logits=0,
        kv_per_token=max(1, 2 * numbers.get("num_hidden_layers", 1) * kv_heads * size * 2),
        tokens_per_sequence=target.tokens_per_sequence,
    )


def _weights(checkpoint: Placed) -> int:
    """The first rank's part of every tensor, as the engine stores it."""
    config, total = checkpoint.config, 0.0
    algorithm = (config.get("quantization") or {}).get("quant_algo")
    itemsize = float(ITEMSIZE[config["dtype"]])
    if checkpoint.first_rank is not None:
        return _weights_as_they_are(checkpoint.first_rank, algorithm)
    for name, parts in checkpoint.tensors.items():
        matrix = name.endswith(".weight") and name.split(".")[-2] in _MATRICES
        size = QUANTIZED.get(algorithm, itemsize) if matrix and algorithm else itemsize
        for part in parts:
            held = np.dtype(part.dtype).itemsize if part.dtype else size
            total += held * _elements(part, config)
    return int(total) // int(config["mapping"]["pp_size"])


def _weights_as_they_are(tensors: Mapping[str, Span], algorithm: str | None) -> int:
    """One rank's file, but for matrices that trtllm-build quantises."""
    total = 0.0
    for name, span in tensors.items():
        size = QUANTIZED.get(algorithm or "") if MATRIX.search(name) and is_float(span) else None
        total += prod(span.shape) * (span.dtype.itemsize if size is None else size)
    return int(total)


def _elements(part: Part, config: Mapping[str, Any]) -> int:
    kv_heads = part.kv_heads or int(config["num_key_value_heads"])
    tp = int(config["mapping"]["tp_size"])
    mine = shard(split_of(part.place, config), part.shape, tp, 0, kv_heads=kv_heads)
    return mine.rows * (mine.right - mine.left) * prod(part.shape[2:])


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if abs(size) >= 0.1 * GIB else f"{size / MIB:.1f} MiB"
