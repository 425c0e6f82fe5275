"""Medusa: per head a few residual layers and an lm_head, all on the target's last hidden state.

    {h}.{l}.linear.weight|bias   residual layer l of head h
    {h}.{layers}.weight          the head's lm_head

NVIDIA ModelOpt writes the same names below `medusa_heads.`. Heads and layers are counted in the
file: config.json may be wrong (that of FasterDecoding/medusa-vicuna-7b-v1.3 says 2; 4 are there).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.checkpoint.heads.head import (
    MAX_LAYERS,
    Head,
    HeadPlan,
    HeadSpec,
    HeadTensor,
    without_assumed,
)
from toolkit.checkpoint.interfaces import Source
from toolkit.recipe.release import Release

_NAME = re.compile(r"(medusa_heads\.)?(\d{1,3})\.(\d{1,3})\.(linear\.weight|linear\.bias|weight)")
# The target's architecture -> Medusa's word for it.
MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
}


class MedusaHead(Head):
    """One checkpoint of architecture MedusaForCausalLM."""

    files = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
    prefix = "medusa_heads."

    def architecture(self, base: str, release: Release) -> str | None:
        return "MedusaForCausalLM" if base in MODEL_TYPES else None

    def plan(self, heads: Source, base: Mapping[str, Any], spec: HeadSpec) -> HeadPlan:
        count, layers = count_heads(heads)
        used = int(spec.fields.get("num_medusa_heads") or count)
        if problems := list(wrong_count(heads, count, layers, used)):
            return HeadPlan(config={}, tensors=(), problems=tuple(problems))
        found = {name: _NAME.fullmatch(name) for name in heads.tensors}
        prefix = self.prefix if any(match and match[1] for match in found.values()) else ""
        unused = {name for name, match in found.items() if match and used <= int(match[2]) < count}
        return HeadPlan(
            config=_config(base, spec, used, layers),
            tensors=tuple(head_tensors(prefix, used, layers, base)),
            dropped=frozenset(unused),
        )


def count_heads(heads: Source) -> tuple[int, int]:
    """(heads, residual layers of each) by the names in the file."""
    matches = [match for match in map(_NAME.fullmatch, heads.tensors) if match]
    count = max((int(match[2]) + 1 for match in matches), default=0)
    layers = max((int(m[3]) + 1 for m in matches if m[4] != "weight"), default=0)
    return count, layers


def wrong_count(heads: Source, count: int, layers: int, used: int) -> Iterator[str]:
    """Heads that are missing in the file, or more of them wanted than it has."""
    numbers = {int(match[2]) for match in map(_NAME.fullmatch, heads.tensors) if match}
    if not numbers:
        yield "holds no Medusa head: no tensor is named like 0.0.linear.weight"
    elif missing := sorted(set(range(count)) - numbers):
        shown = ", ".join(map(str, missing[:5])) + (" ..." if len(missing) > 5 else "")
        yield f"holds a Medusa head {count - 1}, but none of number {shown}"
    elif used > count:
        yield f"holds {count} Medusa head(s), the recipe's num_medusa_heads is {used}"
    elif layers > MAX_LAYERS:
        yield f"holds a Medusa head of {layers} layers, at most {MAX_LAYERS} are possible"


def head_tensors(
    prefix: str, count: int, layers: int, base: Mapping[str, Any]
) -> Iterator[HeadTensor]:
    """What the heads' file must hold for this target."""
    hidden, vocab = base["hidden_size"], base["vocab_size"]
    for h in range(count):
        for layer in range(layers):
            for kind, shape in {"weight": (hidden, hidden), "bias": (hidden,)}.items():
                yield HeadTensor(
                    name=f"medusa_heads.{h}.medusa_layers.{layer}.linear.{kind}",
                    source=f"{prefix}{h}.{layer}.linear.{kind}",
                    shape=shape,
                    split="rows",
                )
        yield HeadTensor(
            name=f"medusa_heads.{h}.lm_head.weight",
            source=f"{prefix}{h}.{layers}.weight",
            shape=(vocab, hidden),
            split="vocab",
        )


def _config(base: Mapping[str, Any], spec: HeadSpec, count: int, layers: int) -> dict[str, Any]:
    return {
        **without_assumed(base),
        **spec.fields,
        "architecture": "MedusaForCausalLM",
        "num_medusa_heads": count,
        "num_medusa_layers": layers,
        "model_type": MODEL_TYPES[base["architecture"]],
    }


MEDUSA = MedusaHead()
