"""P5: numbers that must agree inside a head, and between a head and its target.

An EAGLE-3 head (H target hidden, D draft vocabulary, V target vocabulary, L target layers):

    fc.weight [h, 3H]     three of the target's hidden states
    lm_head.weight [D, h]
    d2t [D]               target id = draft id + d2t[draft id]
    t2d [V]               true for the D target ids that the head can draft
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from toolkit.checkpoint.config import rope
from toolkit.checkpoint.interfaces import Source
from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding

WHERE = "heads"


def check(facts: Facts) -> Iterator[Finding]:
    """The head of this drafter, if its shapes are not checked by a conversion already."""
    target = facts.configs.get("target")
    rule = HEADS_OF.get(facts.recipe.speculation.drafter)
    if rule and facts.heads is not None and target is not None:
        yield from rule(facts.heads, target)


def eagle3(heads: Source, target: Mapping[str, Any]) -> Iterator[Finding]:
    """Everything that makes an EAGLE-3 head load and then accept next to nothing."""
    fused, hidden = heads.tensors.get("fc.weight"), int(target["hidden_size"])
    if fused is None:
        yield Finding(WHERE, f"{heads.name}: fc.weight: missing; expected shape [*, {3 * hidden}]")
    elif fused.shape[-1] == 2 * hidden:
        yield Finding(
            WHERE,
            f"{heads.name}: fc.weight has {2 * hidden} = 2 x {hidden} inputs: an EAGLE-1 or "
            "EAGLE-2 head; use drafter: eagle with backend: tensorrt, or an EAGLE-3 head",
        )
        return
    elif fused.shape[-1] != 3 * hidden:
        yield Finding(
            WHERE,
            f"{heads.name}: fc.weight has shape {list(fused.shape)}; with this target (hidden_size "
            f"{hidden}) it needs {3 * hidden} = 3 x {hidden} inputs: the head is for another model",
        )
    yield from _vocabulary(heads, target)
    yield from _captured_layers(heads, target)
    yield from _rope(heads, target)


def _vocabulary(heads: Source, target: Mapping[str, Any]) -> Iterator[Finding]:
    vocab = int(target["vocab_size"])
    head, d2t = heads.tensors.get("lm_head.weight"), heads.tensors.get("d2t")
    said = heads.config.get("draft_vocab_size")
    rows = head.shape[0] if head else None
    draft = int(said if said is not None else rows or vocab)
    if said is None and rows not in (None, vocab):
        yield Finding(
            WHERE,
            f"{heads.name}/config.json: draft_vocab_size is missing, lm_head.weight has {rows} "
            f"rows (the target's vocabulary has {vocab}); add draft_vocab_size {rows}",
        )
    if head is None and draft != vocab:
        yield Finding(
            WHERE,
            f"{heads.name}: lm_head.weight is missing, but draft_vocab_size {draft} differs from "
            f"the target's {vocab}, so its lm_head cannot be used instead; export the head again",
        )
    if rows is not None and said is not None and rows != said:
        yield Finding(
            WHERE,
            f"{heads.name}: lm_head.weight has {rows} rows, draft_vocab_size in config.json is "
            f"{said}; they must be equal",
        )
    if d2t is None:
        if draft != vocab:
            yield Finding(
                WHERE,
                f"{heads.name}: d2t is missing, but draft_vocab_size {draft} differs from the "
                f"target's {vocab}: draft ids would be taken for target ids",
            )
        return
    yield from _maps(heads, draft, vocab)


def _maps(heads: Source, draft: int, vocab: int) -> Iterator[Finding]:
    """d2t and t2d, which are small enough to be read as a whole."""
    length = heads.tensors["d2t"].shape[0]
    if length != draft:
        yield Finding(
            WHERE, f"{heads.name}: d2t has {length} entries, the draft vocabulary has {draft}"
        )
    offsets = np.asarray(heads.read("d2t"), dtype=np.int64)
    ids = np.arange(length) + offsets
    outside = np.flatnonzero((ids < 0) | (ids >= vocab))
    if outside.size:
        first = int(outside[0])
        yield Finding(
            WHERE,
            f"{heads.name}: d2t maps {outside.size} draft id(s) outside the target's {vocab} "
            f"tokens, first {first} to {int(ids[first])}; the head is for another vocabulary",
        )
    if (repeated := length - np.unique(ids).size) > 0:
        yield Finding(WHERE, f"{heads.name}: d2t maps {repeated} draft id(s) to a token twice")
    if "t2d" not in heads.tensors:
        return
    mask = np.asarray(heads.read("t2d")).astype(bool)
    if mask.shape[0] != vocab:
        yield Finding(
            WHERE, f"{heads.name}: t2d has {mask.shape[0]} entries, the target has {vocab} tokens"
        )
    if int(mask.sum()) != draft:
        yield Finding(
            WHERE,
            f"{heads.name}: t2d marks {int(mask.sum())} tokens, the draft vocabulary has {draft}",
        )


def _captured_layers(heads: Source, target: Mapping[str, Any]) -> Iterator[Finding]:
    own = heads.config.get("eagle_config")
    named = (own if isinstance(own, Mapping) else heads.config).get(
        "eagle_aux_hidden_state_layer_ids"
    )
    layers = int(target["num_hidden_layers"])
    if not isinstance(named, list):
        return
    beyond = [i for i in named if not isinstance(i, int) or not 0 <= i < layers]
    if beyond:
        yield Finding(
            WHERE,
            f"{heads.name}/config.json: eagle_aux_hidden_state_layer_ids {named}: {beyond} not in "
            f"the target, which has layers 0 to {layers - 1}",
        )


def _rope(heads: Source, target: Mapping[str, Any]) -> Iterator[Finding]:
    """The head has a rotary table of its own, so another one is only worth a word."""
    theta, scaling = rope(heads.config, target["rotary_base"])
    if theta != target["rotary_base"] or (scaling or None) != (target["rotary_scaling"] or None):
        yield Finding(
            WHERE,
            f"{heads.name}/config.json: rope_theta {theta} and rope_scaling {scaling}, the target "
            f"has {target['rotary_base']} and {target['rotary_scaling']}; right only if the head "
            "was trained so",
            "note",
        )


HEADS_OF: Mapping[str, Callable[[Source, Mapping[str, Any]], Iterator[Finding]]] = {
    "eagle3": eagle3
}
