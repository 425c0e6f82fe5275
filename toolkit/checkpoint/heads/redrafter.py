"""ReDrafter: a recurrent state beside the target's hidden state, residual layers and an lm_head.

    input_proj.*           only where 2 * hidden_size differs from exit_dim
    lm_head.{i}.linear.*   residual layer i
    lm_head.{layers}       the head's lm_head
    rnn_u.*, rnn_w.weight  only with "rnn": true in config.json

The three spellings that exist of the first part of a name are in `_SPELLINGS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.checkpoint.heads.head import (
    Head,
    HeadPlan,
    HeadSpec,
    HeadTensor,
    without_assumed,
    wrong_sizes,
)
from toolkit.checkpoint.interfaces import Source
from toolkit.recipe.release import Release

_SPELLINGS = {"lm_head": ("lm_head", "lm_heads", "0"), "input_proj": ("input_proj", "input_projs")}
_SIZES = ("hidden_size", "exit_dim", "num_draft_layers")
# Since this release there is one architecture for each family of targets.
_BY_FAMILY = (1, 0)
ARCHITECTURES = {
    "LlamaForCausalLM": "ReDrafterForLLaMALM",
    "MistralForCausalLM": "ReDrafterForLLaMALM",  # Llama's class builds Mistral as well
    "Qwen2ForCausalLM": "ReDrafterForQWenLM",
}


class ReDrafterHead(Head):
    """One checkpoint whose architecture says ReDrafter and, later, the target's family."""

    files = ("model.safetensors", "model.pt")
    prefix = "drafter."
    changed_in = (_BY_FAMILY,)

    def architecture(self, base: str, release: Release) -> str | None:
        if release >= _BY_FAMILY:
            return ARCHITECTURES.get(base)
        only_llama = ARCHITECTURES.get(base) == "ReDrafterForLLaMALM"
        return "ReDrafterForCausalLM" if only_llama else None

    def plan(self, heads: Source, base: Mapping[str, Any], spec: HeadSpec) -> HeadPlan:
        sizes = {key: heads.config.get(key) for key in _SIZES}
        if problems := wrong_sizes(sizes, layers="num_draft_layers"):
            return HeadPlan(config={}, tensors=(), problems=tuple(problems))
        hidden, exit_dim, layers = (int(sizes[key] or 0) for key in _SIZES)
        if hidden != base["hidden_size"]:
            problems.append(
                f"config.json: hidden_size {hidden}, the target's is {base['hidden_size']}"
            )
        rnn = bool(heads.config.get("rnn", False))
        return HeadPlan(
            config={
                **without_assumed(base, keep=_KEPT),
                **spec.fields,
                "architecture": self.architecture(base["architecture"], spec.release),
                "base_model_architecture": base["architecture"],
                "redrafter_num_layers": layers,
                "redrafter_hidden_size": hidden,
                "redrafter_exit_dim": exit_dim,
                "redrafter_is_rnn": rnn,
            },
            tensors=tuple(_tensors(heads, base, exit_dim, layers, rnn)),
            problems=tuple(problems),
        )


_KEPT = ("head_size", "rotary_embedding_dim", "qk_layernorm", "runtime_defaults")


def _tensors(
    heads: Source, base: Mapping[str, Any], exit_dim: int, layers: int, rnn: bool
) -> Iterator[HeadTensor]:
    hidden, vocab = base["hidden_size"], base["vocab_size"]
    head = _spelling(heads, "lm_head")
    if 2 * hidden != exit_dim:
        source = _spelling(heads, "input_proj")
        yield from _linear("drafter.input_proj", source, (exit_dim, 2 * hidden))
    for i in range(layers):
        yield from _linear(f"drafter.layers.{i}.linear", f"{head}.{i}.linear", (exit_dim, exit_dim))
    yield HeadTensor(
        name="drafter.lm_head.weight",
        source=f"{head}.{layers}.weight",
        shape=(vocab, exit_dim),
        split="vocab",
    )
    if rnn:
        yield from _linear("drafter.rnn_u", "rnn_u", (hidden, hidden))
        yield next(_linear("drafter.rnn_w", "rnn_w", (hidden, hidden)))


def _linear(name: str, source: str, shape: tuple[int, int]) -> Iterator[HeadTensor]:
    """The weight, then the bias."""
    for kind, sizes in {"weight": shape, "bias": shape[:1]}.items():
        yield HeadTensor(
            name=f"{name}.{kind}", source=f"{source}.{kind}", shape=sizes, split="rows"
        )


def _spelling(heads: Source, word: str) -> str:
    """The spelling that this file uses; the first one where it has none."""
    spellings = _SPELLINGS[word]
    for spelling in spellings:
        if any(name.startswith(f"{spelling}.") for name in heads.tensors):
            return spelling
    return spellings[0]


REDRAFTER = ReDrafterHead()
