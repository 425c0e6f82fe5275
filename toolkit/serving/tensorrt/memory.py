"""KV memory of engines behind Triton: who gets how much where several share a GPU.

`kv_cache_free_gpu_mem_fraction` is of the memory that is free when that engine loads, and Triton
loads models side by side: 0.5 and 0.5 is a half and then a half of the rest, of whoever is second.
So engines that share a GPU also get a number of tokens, which does not depend on the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.engine.trtllm.directory import TrtEngine
from toolkit.engine.trtllm.placement import Placement
from toolkit.recipe.schema import Recipe


@dataclass(frozen=True, slots=True)
class Share:
    """One engine's KV pool."""

    fraction: float  # of the memory that is free when it loads after those before it
    tokens: int | None  # never more than this


def shares(
    recipe: Recipe, engines: Mapping[str, TrtEngine], placement: Placement
) -> dict[str, Share]:
    """By role, in load order; what the recipe says stands."""
    from toolkit.backends.tensorrt.runtime import memory_shares

    whole = recipe.tensorrt.kv_cache_fraction
    fractions = dict.fromkeys(engines, whole)
    if placement.shared:
        fractions = memory_shares(engines, whole)
    found = {}
    for role, engine in engines.items():
        said = recipe.serve.tensorrt.engine(role)
        tokens = said.max_tokens_in_paged_kv_cache
        if tokens is None and placement.shared:
            tokens = full_batch(engine)
        fraction = said.kv_cache_free_gpu_mem_fraction or fractions[role]
        found[role] = Share(round(fraction, 4), tokens)
    return found


def full_batch(engine: TrtEngine) -> int:
    """Tokens of a batch of texts of full length, in whole blocks."""
    block = int((engine.build.get("plugin_config") or {}).get("tokens_per_block") or 64)
    per_sequence = -(-int(engine.build["max_seq_len"]) // block) * block
    return int(engine.build["max_batch_size"]) * per_sequence


def notes(found: Mapping[str, Share], placement: Placement) -> list[str]:
    """How the memory is divided, in words."""
    if not placement.shared:
        return []
    parts = [
        f"{role} {share.fraction:g} of what is free when it loads"
        + (f", at most {share.tokens} tokens" if share.tokens else "")
        for role, share in found.items()
    ]
    return [f"KV cache, in load order: {'; then '.join(parts)}"]
