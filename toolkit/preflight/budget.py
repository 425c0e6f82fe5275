"""What one GPU must hold, in the order in which engines load: an estimate from config files.

    weights   this GPU's part of every tensor that the checkpoint has
    buffers   activations of one forward pass over max_num_tokens, and the logits of one verify step
    KV pool   2 x layers x KV heads x head size for every token of every sequence

Draft layers inside the target's engine (EAGLE's) have KV too. A fraction of free memory means
something else for every engine that loads: the first one takes it of everything, the next of what
that left. So the pools are sized together here, and given in tokens as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20
GIB = 1 << 30
# CUDA context, cuBLAS and NCCL workspaces, and what the allocator cannot use. An assumption.
RESERVED = 1 * GIB
MAX_BATCH = 4096
LOGITS_BYTES = 4  # always float32


@dataclass(frozen=True)
class Sizes:
    """One engine on one GPU, for a given batch size."""

    role: str
    weights: int
    activations: int
    logits: int
    kv_per_token: int
    tokens_per_sequence: int  # prompt, output and draft tokens, in whole KV blocks

    @property
    def loaded(self) -> int:
        """What it takes before its KV pool is made."""
        return self.weights + self.activations + self.logits

    @property
    def kv_per_sequence(self) -> int:
        return self.kv_per_token * self.tokens_per_sequence


@dataclass(frozen=True)
class Line:
    """One engine in the budget, with the pool that it gets."""

    sizes: Sizes
    kv_pool: int
    fraction: float  # of the memory that is free when this engine makes its pool

    @property
    def kv_tokens(self) -> int:
        return self.kv_pool // self.sizes.kv_per_token


@dataclass(frozen=True)
class Budget:
    """Everything on one GPU."""

    gpu: str
    total: int
    lines: tuple[Line, ...]
    max_batch_size: int  # the recipe's
    largest_batch: int  # sequences of full length that fit side by side; 0: none

    @property
    def loaded(self) -> int:
        return sum(line.sizes.loaded for line in self.lines)

    @property
    def free(self) -> int:
        """For KV pools; negative when not even the engines fit."""
        return self.total - RESERVED - self.loaded

    def to_json(self) -> dict[str, Any]:
        return {
            "gpu": self.gpu,
            "total_bytes": self.total,
            "reserved_bytes": RESERVED,
            "max_batch_size": self.max_batch_size,
            "largest_batch_that_fits": self.largest_batch,
            "engines": [
                {
                    "role": line.sizes.role,
                    "weights_bytes": line.sizes.weights,
                    "activations_bytes": line.sizes.activations,
                    "logits_bytes": line.sizes.logits,
                    "kv_bytes_per_token": line.sizes.kv_per_token,
                    "kv_pool_bytes": line.kv_pool,
                    "max_tokens_in_paged_kv_cache": line.kv_tokens,
                    "kv_cache_free_gpu_mem_fraction": round(line.fraction, 4),
                }
                for line in self.lines
            ],
        }


def kv_bytes_per_token(
    config: Mapping[str, Any],  # config.json of the checkpoint
    itemsize: int,
) -> int:
    """Keys and values of one token on one GPU of a tensor-parallel group."""
    own = _kv_bytes(config, itemsize)
    net = config.get("eagle_net_config")
    return own + (_kv_bytes(net, itemsize) if net else 0)


def _kv_bytes(config: Mapping[str, Any], itemsize: int) -> int:
    heads, tp = int(config["num_key_value_heads"]), int(config["mapping"]["tp_size"])
    layers = -(-int(config["num_hidden_layers"]) // int(config["mapping"]["pp_size"]))
    size = int(
        config.get("head_size") or config["hidden_size"] // int(config["num_attention_heads"])
    )
    return 2 * layers * -(-heads // tp) * size * itemsize


def activation_bytes(config: Mapping[str, Any], tokens: int, itemsize: int) -> int:
    """The widest layer at work: both halves of the MLP beside the residual stream."""
    tp = int(config["mapping"]["tp_size"])
    hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    return tokens * (2 * inner // tp + 3 * hidden) * itemsize


def logits_bytes(config: Mapping[str, Any], batch: int, draft_len: int) -> int:
    """Of one verify step: every draft token and the one after them."""
    return batch * (draft_len + 1) * int(config["vocab_size"]) * LOGITS_BYTES


def make_budget(
    gpu: str,
    total: int,
    sizes: Callable[[int], Sequence[Sizes]],  # batch -> engines in load order
    max_batch_size: int,
    fraction: float,
) -> Budget:
    """Engines built for `max_batch_size` on a GPU of `total` bytes, pools shared by token size."""
    engines = sizes(max_batch_size)
    free = max(0, total - RESERVED - sum(engine.loaded for engine in engines))
    pools = _pools(engines, int(free * fraction))
    return Budget(
        gpu=gpu,
        total=total,
        lines=tuple(_in_load_order(engines, pools, total)),
        max_batch_size=max_batch_size,
        largest_batch=_largest(sizes, total, fraction),
    )


def _pools(engines: Sequence[Sizes], available: int) -> list[int]:
    """Pools for the same number of sequences in every engine."""
    together = sum(engine.kv_per_sequence for engine in engines)
    return [available * engine.kv_per_sequence // together for engine in engines]


def _in_load_order(engines: Sequence[Sizes], pools: Sequence[int], total: int) -> list[Line]:
    """The fraction that gives each engine its pool, out of what those before it left."""
    lines, used = [], RESERVED
    for engine, pool in zip(engines, pools, strict=True):
        free = total - used - engine.loaded
        lines.append(Line(engine, pool, pool / free if free > 0 else 0.0))
        used += engine.loaded + pool
    return lines


def _largest(sizes: Callable[[int], Sequence[Sizes]], total: int, fraction: float) -> int:
    """The largest batch whose sequences all fit at full length; engines built for that batch."""

    def fits(batch: int) -> bool:
        engines = sizes(batch)
        free = total - RESERVED - sum(engine.loaded for engine in engines)
        return batch * sum(engine.kv_per_sequence for engine in engines) <= free * fraction

    low, high = 0, MAX_BATCH
    while low < high:  # memory only grows with the batch
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
