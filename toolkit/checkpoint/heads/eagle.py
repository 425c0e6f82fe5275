"""EAGLE-1 and EAGLE-2: one decoder layer that reads a token's embedding beside the hidden state.

    fc.weight [H, 2H], fc.bias    joins the two; heads for Llama 3 have no bias
    layers.{j}.*                  Llama's names; layer 0 has no input_layernorm
    embed_tokens.weight           the target's, frozen in training; taken from it when absent

TensorRT-LLM holds the same head once for each depth of the tree. Its engine has one rotary table,
the target's, for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.checkpoint.config import rope, sizes
from toolkit.checkpoint.families.llama import DECODER
from toolkit.checkpoint.heads.head import Head, HeadPlan, HeadSpec, HeadTensor, wrong_sizes
from toolkit.checkpoint.interfaces import Source
from toolkit.errors import CheckpointError
from toolkit.recipe.release import Release

TARGETS = ("LlamaForCausalLM", "MistralForCausalLM")
HEAD_DIM: Release = (1, 0)  # since then config.json says head_dim beside head_size
_EPSILON = 1e-6  # where a Llama config.json says nothing
_HF = "model.layers.{i}."
_TRT = "transformer.layers.{i}."
# Files name decoder layers with and without a prefix; ModelOpt's hold the target as well.
_PREFIXES = ("", "eagle_module.", "model.")
_EAGLE3 = re.compile(r"(?:.*\.)?(?:midlayer\..*|d2t|t2d|.*hidden_norm\.weight)")
_DROPPED = re.compile(r".*rotary_emb\.inv_freq")
_SIZES = {
    "num_attention_heads": "num_attention_heads",
    "num_hidden_layers": "num_hidden_layers",
    "intermediate_size": "intermediate_size",
    "hidden_size": "hidden_size",
}


@dataclass(frozen=True)
class _Shape:
    """The head's own sizes."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head: int
    layers: int


class EagleHead(Head):
    """One checkpoint of architecture EagleForCausalLM."""

    files = ("model.safetensors", "pytorch_model.bin", "model.pt")
    prefix = "eagle_module."
    changed_in = (HEAD_DIM,)

    def architecture(self, base: str, release: Release) -> str | None:
        return "EagleForCausalLM" if base in TARGETS else None

    def plan(self, heads: Source, base: Mapping[str, Any], spec: HeadSpec) -> HeadPlan:
        refuse_eagle3(heads, base)
        shape, problems = _shape(heads.config, base)
        if shape is None:
            return HeadPlan(config={}, tensors=(), problems=tuple(problems))
        problems += _other_rope(heads.config, base)
        if base["mapping"]["pp_size"] != 1:
            problems.append(
                f"parallel.pp is {base['mapping']['pp_size']}; EAGLE engines have one pipeline "
                "stage: use parallel.tp instead"
            )
        count = int(spec.fields.get("num_eagle_layers", 4))
        prefix = file_prefix(heads)
        embedded = f"{prefix}embed_tokens.weight" in heads.tensors
        copies = {f"eagle_nets.{n}.lm_head.weight": "lm_head.weight" for n in range(count)}
        if not embedded:
            name = "eagle_nets.{n}.drafter.vocab_embedding.weight"
            copies |= {name.format(n=n): "transformer.vocab_embedding.weight" for n in range(count)}
        return HeadPlan(
            config=_config(base, spec, shape, heads.config, count),
            tensors=tuple(_tensors(prefix, shape, base, count, embedded)),
            copies=copies,
            dropped=frozenset(name for name in heads.tensors if _DROPPED.fullmatch(name)),
            problems=tuple(problems),
        )


def refuse_eagle3(heads: Source, base: Mapping[str, Any]) -> None:
    """An EAGLE-3 head is no EAGLE head: say why it cannot be used, and where it can."""
    signs = [name for name in heads.tensors if _EAGLE3.fullmatch(name)][:3]
    fused = heads.tensors.get(f"{file_prefix(heads)}fc.weight")
    if fused and len(fused.shape) == 2 and fused.shape[1] == 3 * base["hidden_size"]:
        signs.append(f"fc.weight with {fused.shape[1]} = 3 x {base['hidden_size']} inputs")
    if signs or heads.config.get("draft_vocab_size") is not None:
        found = ", ".join(signs) or f"draft_vocab_size {heads.config['draft_vocab_size']}"
        raise CheckpointError(
            heads.name,
            [
                f"{heads.name} is an EAGLE-3 head ({found}); TensorRT-LLM's engines have no "
                "place for its fused hidden states, draft vocabulary and own lm_head; use drafter: "
                "eagle3 with backend: pytorch, or an EAGLE-1 or EAGLE-2 head"
            ],
        )


def file_prefix(heads: Source) -> str:
    """What stands before every name of the head's own."""
    for prefix in _PREFIXES:
        if any(name.startswith((f"{prefix}layers.", f"{prefix}fc.")) for name in heads.tensors):
            return prefix
    return ""


def _shape(config: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[_Shape | None, list[str]]:
    values = {key: config.get(key) for key in _SIZES}
    values["num_hidden_layers"] = config.get("num_hidden_layers", 1)
    values["num_key_value_heads"] = config.get("num_key_value_heads", values["num_attention_heads"])
    optional = ("head_dim", "max_position_embeddings")
    values |= {key: config[key] for key in optional if config.get(key) is not None}
    wrong = wrong_sizes(values, layers="num_hidden_layers")
    epsilon = config.get("rms_norm_eps", _EPSILON)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        wrong.append(f"config.json: rms_norm_eps is {epsilon!r}, expected a small positive number")
    if wrong:
        return None, wrong
    hidden, heads = base["hidden_size"], int(values["num_attention_heads"] or 0)
    kv_heads, tp = int(values["num_key_value_heads"] or 0), base["mapping"]["tp_size"]
    shape = _Shape(
        hidden=hidden,
        intermediate=int(values["intermediate_size"] or 0),
        heads=heads,
        kv_heads=kv_heads,
        head=int(config.get("head_dim") or hidden // heads),
        layers=int(values["num_hidden_layers"] or 0),
    )
    problems = []
    for key in ("hidden_size", "vocab_size"):
        if config.get(key, base[key]) != base[key]:
            problems.append(f"config.json: {key} {config[key]}, the target's is {base[key]}")
    if heads % tp or (kv_heads % tp and tp % kv_heads):
        problems.append(
            f"parallel.tp {tp} does not split the head's {heads} attention and {kv_heads} KV heads"
        )
    return shape, problems


def _other_rope(config: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """A head that was trained with another rotary embedding drafts noise beyond a few tokens."""
    theta, scaling = rope(config, base["rotary_base"])
    problems = []
    if theta != base["rotary_base"]:
        problems.append(
            f"config.json: rope_theta {theta}, the target's is {base['rotary_base']}; an engine "
            "has one rotary table for both"
        )
    if scaling and scaling != base["rotary_scaling"]:
        problems.append(
            f"config.json: rope_scaling {scaling}, the target's is {base['rotary_scaling']}; an "
            "engine has one rotary table for both"
        )
    return problems


def _tensors(
    prefix: str, shape: _Shape, base: Mapping[str, Any], count: int, embedded: bool
) -> Iterator[HeadTensor]:
    words = sizes(base) | {
        "hidden": shape.hidden,
        "intermediate": shape.intermediate,
        "head": shape.head,
        "q": shape.heads * shape.head,
        "kv": shape.kv_heads * shape.head,
    }
    hidden = shape.hidden
    for n in range(count):
        net = f"eagle_nets.{n}.drafter."
        if embedded:
            yield HeadTensor(
                name=net + "vocab_embedding.weight",
                source=prefix + "embed_tokens.weight",
                shape=(words["vocab"], hidden),
            )
        yield HeadTensor(
            name=net + "fc.weight",
            source=prefix + "fc.weight",
            shape=(hidden, 2 * hidden),
            split="rows",
        )
        yield HeadTensor(
            name=net + "fc.bias",
            source=prefix + "fc.bias",
            shape=(hidden,),
            split="rows",
            zeros=True,
        )
        for j in range(shape.layers):
            for source, place in DECODER.items():
                if place is None or _HF not in source:
                    continue
                if j == 0 and source.endswith("input_layernorm.weight"):
                    continue  # the first layer reads what fc gives as it is
                yield HeadTensor(
                    name=place.name.replace(_TRT, f"{net}layers.{j}."),
                    source=source.replace(_HF, f"{prefix}layers.{j}."),
                    shape=tuple(words[word] for word in place.shape),
                    split=place.split,
                    kv_heads=shape.kv_heads,
                )


def _config(
    base: Mapping[str, Any],
    spec: HeadSpec,
    shape: _Shape,
    config: Mapping[str, Any],
    count: int,
) -> dict[str, Any]:
    common = {key: value for key, value in base.items() if key != "tie_word_embeddings"}
    # Without experts the mode is never read; this is what every upstream checkpoint says.
    common["moe"] = {**base["moe"], "normalization_mode": 1}
    head_dim = spec.release >= HEAD_DIM
    net = {
        **common,
        "architecture": "LlamaForCausalLM",
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "norm_epsilon": config.get("rms_norm_eps", _EPSILON),
        "max_position_embeddings": config.get("max_position_embeddings") or 2048,
        "head_size": shape.head,
        "rotary_embedding_dim": shape.head,
        "fc_after_embed": True,
        "use_input_layernorm_in_first_layer": False,
        "use_last_layernorm": False,
        "layer_idx_offset": base["num_hidden_layers"],
        **({"head_dim": shape.head} if head_dim else {}),
    }
    return {
        **common,
        **({"head_dim": base["head_size"]} if head_dim else {}),
        "max_draft_len": 63,
        "max_non_leaves_per_layer": 10,
        **spec.fields,
        "architecture": "EagleForCausalLM",
        "num_eagle_layers": count,
        "eagle_net_config": net,
    }


EAGLE = EagleHead()
