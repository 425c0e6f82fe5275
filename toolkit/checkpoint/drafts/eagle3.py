"""EAGLE-3 heads (Li et al. 2025): four layouts in, the one that TensorRT-LLM loads out.

h hidden, H target hidden (h = H for most), D draft vocabulary, V target vocabulary, n captured
layers (3 unless config.json says otherwise):

    fc.weight [h, nH]                       joins the target's captured states
    midlayer.self_attn.{q,k,v}_proj.weight  [., 2h]: embedding and state side by side
    midlayer.{hidden_norm,input_layernorm}  one norm for each of the two
    norm.weight [h], lm_head.weight [D, h]  absent lm_head: the target's, so D = V
    d2t [D], t2d [V]                        see vocabulary.py
    embed_tokens.weight [V, h]              TensorRT-LLM takes the target's where h = H

SafeAILab and SpecForge call the decoder layer `midlayer.`, ModelOpt and speculators `layers.0.`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.checkpoint.convert import FLOATS
from toolkit.checkpoint.drafts.eagle3_config import (
    HeadConfig,
    config_notes,
    config_problems,
    read_config,
    written_config,
)
from toolkit.checkpoint.drafts.kinds import eagle3_signs, whole_model_signs
from toolkit.checkpoint.drafts.target import TargetFacts
from toolkit.checkpoint.drafts.vocabulary import vocabulary_problems
from toolkit.checkpoint.interfaces import Source, TensorInfo
from toolkit.checkpoint.safetensors_file import shown
from toolkit.recipe.release import Release

LAYERS = ("midlayer.", "layers.0.")
# Known, and nothing that TensorRT-LLM reads. speculators keeps the target's norm and lm_head.
_DROPPED = re.compile(r"t2d|.*rotary_emb\.inv_freq|verifier_(norm|lm_head)\.weight")
_LAYER = {
    "self_attn.q_proj.weight": ("q", "double"),
    "self_attn.k_proj.weight": ("kv", "double"),
    "self_attn.v_proj.weight": ("kv", "double"),
    "self_attn.o_proj.weight": ("hidden", "q"),
    "mlp.gate_proj.weight": ("intermediate", "hidden"),
    "mlp.up_proj.weight": ("intermediate", "hidden"),
    "mlp.down_proj.weight": ("hidden", "intermediate"),
    "hidden_norm.weight": ("hidden",),
    "input_layernorm.weight": ("hidden",),
    "post_attention_layernorm.weight": ("hidden",),
}
# config.json's word for biases -> the tensors that there are then, all of them.
_BIASES = {
    "bias": {"fc.bias": ("hidden",)},
    "attention_bias": {
        "{layer}self_attn.q_proj.bias": ("q",),
        "{layer}self_attn.k_proj.bias": ("kv",),
        "{layer}self_attn.v_proj.bias": ("kv",),
        "{layer}self_attn.o_proj.bias": ("hidden",),
    },
    "mlp_bias": {
        "{layer}mlp.gate_proj.bias": ("intermediate",),
        "{layer}mlp.up_proj.bias": ("intermediate",),
        "{layer}mlp.down_proj.bias": ("hidden",),
    },
}


@dataclass(frozen=True, kw_only=True)
class Eagle3Form:
    """What the loader of the target's release takes."""

    release: Release = (1, 2)
    layer: str = "midlayer."  # which of LAYERS; every release takes the first


@dataclass(frozen=True, kw_only=True)
class DraftPlan:
    """A draft's directory before it is written: config.json, and where each tensor comes from."""

    config: Mapping[str, Any]
    tensors: Mapping[str, str]  # name to write -> name in the source
    captured_layers: tuple[int, ...] | None  # of the target; None: the release's default
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def plan_eagle3(heads: Source, target: TargetFacts, form: Eagle3Form) -> DraftPlan:
    """Names, shapes and config from headers (and d2t); every problem, by tensor and shape."""
    if other := _no_eagle3_head(heads, target):
        return _refused([other])
    head, problems = read_config(heads.config, target.layers)
    if head is None:
        return _refused(problems)
    problems = config_problems(head, target, form.release)
    found = [layer for layer in LAYERS if any(name.startswith(layer) for name in heads.tensors)]
    if len(found) == len(LAYERS):
        problems.append("has tensors of midlayer.* and of layers.0.*: two heads in one file")
    draft, said = _draft_vocab(heads, head)
    problems += said
    layer = found[0] if found else LAYERS[0]
    wanted = dict(_wanted(heads, head, target, draft, layer))
    problems += _wrong_tensors(heads, wanted, draft, target.vocab)
    problems += vocabulary_problems(heads, draft, target.vocab)
    present = {name: name for name in wanted if name in heads.tensors}
    return DraftPlan(
        config=written_config(
            head,
            draft_vocab=draft,
            dtype=head.dtype or _dtype(heads),
            biases={key: names <= present.keys() for key, names in _bias_names(layer).items()},
        ),
        # Sorted by the new name: every layout becomes the same bytes.
        tensors=dict(sorted((_renamed(name, layer, form.layer), name) for name in present)),
        captured_layers=head.captured,
        problems=tuple(problems),
        notes=tuple(_notes(heads, head, target)),
    )


def _renamed(name: str, old: str, new: str) -> str:
    return new + name.removeprefix(old) if name.startswith(old) else name


def _refused(problems: list[str]) -> DraftPlan:
    return DraftPlan(
        config={}, tensors={}, captured_layers=None, problems=tuple(problems), notes=()
    )


def _no_eagle3_head(heads: Source, target: TargetFacts) -> str | None:
    """Something that differs in everything: one sentence instead of twenty."""
    signs = whole_model_signs(heads.tensors)
    if signs and not eagle3_signs({}, heads.tensors):
        return (
            f"is a whole model ({', '.join(signs)}), not an EAGLE-3 head; use drafter: "
            "draft_target with it as `draft`, or name the head's own directory"
        )
    fused = heads.tensors.get("fc.weight")
    if fused is None or fused.shape[-1:] != (2 * target.hidden,):
        return None
    return (
        f"fc.weight: has shape {list(fused.shape)}, {2 * target.hidden} = 2 x {target.hidden} "
        "inputs: an EAGLE-1 or EAGLE-2 head; use drafter: eagle with backend: tensorrt, or an "
        "EAGLE-3 head"
    )


def _draft_vocab(heads: Source, head: HeadConfig) -> tuple[int, list[str]]:
    """D, which config.json should say and lm_head shows."""
    lm_head = heads.tensors.get("lm_head.weight")
    rows = _rows(lm_head) if lm_head else None
    if head.draft_vocab is None:
        return rows or head.vocab, []
    if rows is not None and rows != head.draft_vocab:
        return head.draft_vocab, [
            f"lm_head.weight: has {rows} rows, draft_vocab_size in config.json is "
            f"{head.draft_vocab}; they must be equal"
        ]
    return head.draft_vocab, []


def _rows(tensor: TensorInfo) -> int:
    return tensor.shape[0] if tensor.shape else 0


def _bias_names(layer: str) -> dict[str, set[str]]:
    return {key: {n.format(layer=layer) for n in names} for key, names in _BIASES.items()}


def _wanted(
    heads: Source, head: HeadConfig, target: TargetFacts, draft: int, layer: str
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that goes out, with its shape, in the source's names."""
    count = len(head.captured) if head.captured else 3
    words = {
        "hidden": head.hidden,
        "double": 2 * head.hidden,
        "intermediate": head.intermediate,
        "q": head.heads * head.head,
        "kv": head.kv_heads * head.head,
    }
    yield "fc.weight", (head.hidden, count * target.hidden)
    for name, shape in _LAYER.items():
        yield layer + name, tuple(words[word] for word in shape)
    for names in _BIASES.values():
        full = {name.format(layer=layer): shape for name, shape in names.items()}
        if any(name in heads.tensors for name in full):
            for name, shape in full.items():
                yield name, tuple(words[word] for word in shape)
    yield "norm.weight", (head.hidden,)
    if draft != target.vocab or "lm_head.weight" in heads.tensors:
        yield "lm_head.weight", (draft, head.hidden)
    if draft != target.vocab:
        yield "d2t", (draft,)
    if head.hidden != target.hidden:
        yield "embed_tokens.weight", (target.vocab, head.hidden)
    if head.switches.get("norm_before_fc"):
        yield "input_norm.weight", (count * target.hidden,)
    if head.switches.get("fc_norm"):
        for i in range(count):
            yield f"fc_norm.{i}.weight", (target.hidden,)


def _wrong_tensors(
    heads: Source, wanted: Mapping[str, tuple[int, ...]], draft: int, vocab: int
) -> Iterator[str]:
    """Missing, of another shape or dtype, or of no EAGLE-3 head. d2t is vocabulary.py's."""
    for name, shape in wanted.items():
        found = heads.tensors.get(name)
        if name == "d2t" or (name == "lm_head.weight" and found is None):
            continue
        if found is None:
            yield f"{name}: missing; expected shape {list(shape)}"
        elif found.shape != shape and not (name == "lm_head.weight" and _rows(found) != draft):
            yield f"{name}: has shape {list(found.shape)}, expected {list(shape)}"
        elif found.dtype not in FLOATS:
            yield f"{name}: has dtype {found.dtype}, expected one of {', '.join(FLOATS)}"
    other = set(heads.tensors) - set(wanted) - {"embed_tokens.weight"}
    other -= {"d2t"} if draft == vocab else set()
    for name in sorted(other):
        if not _DROPPED.fullmatch(name) and not _of_second_head(name, wanted):
            yield f"{shown(name)}: unexpected; no EAGLE-3 head has this tensor"


def _of_second_head(name: str, wanted: Mapping[str, Any]) -> bool:
    """The other layer of a file that holds both was named as a whole."""
    return any(
        name.startswith(layer) and not any(known.startswith(layer) for known in wanted)
        for layer in LAYERS
    )


def _dtype(heads: Source) -> str:
    fused = heads.tensors.get("fc.weight")
    return fused.dtype if fused else "bfloat16"


def _notes(heads: Source, head: HeadConfig, target: TargetFacts) -> Iterator[str]:
    yield from config_notes(head, target)
    if "embed_tokens.weight" in heads.tensors and head.hidden == target.hidden:
        yield (
            "embed_tokens.weight is left out: TensorRT-LLM takes the target's; right unless the "
            "head was trained with embeddings of its own"
        )
