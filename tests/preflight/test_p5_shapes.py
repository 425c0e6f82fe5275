"""EAGLE-3 heads: disagreements that let a head load and then accept next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests import tiny_heads as heads
from tests.tiny import HIDDEN, LLAMA3_ROPE, VOCAB, hf_config
from toolkit.checkpoint.config import checkpoint_config
from toolkit.checkpoint.heads.source import open_head_files
from toolkit.preflight.facts import Facts
from toolkit.preflight.p5_shapes import check
from toolkit.recipe.schema import ModelSpec, Recipe

DRAFT = 128
Tensors = dict[str, Any]


def found(tmp_path, tensors=None, config=None, **changes):
    """(problems, notes)"""
    path = heads.write_heads(
        tmp_path / "heads",
        heads.eagle3(DRAFT) if tensors is None else tensors,
        heads.eagle3_config(DRAFT) if config is None else config,
    )
    recipe = {
        "name": "lab",
        "backend": "pytorch",
        "target": {"checkpoint": "target"},
        "speculation": {"drafter": "eagle3", "heads": {"checkpoint": path}},
    }
    target = checkpoint_config(hf_config("llama", **changes), ModelSpec(checkpoint="target"))
    facts = Facts(Recipe.model_validate(recipe), configs={"target": target})
    facts.heads = open_head_files(path, None)
    findings = list(check(facts))
    assert all(f.text.startswith(path) for f in findings)
    return [f.text for f in findings if f.level == "problem"], [
        f.text for f in findings if f.level == "note"
    ]


def change(**values: Any) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update(values)


def drop(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.pop(name)


def offset(at: int, value: int) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors["d2t"][at] = value

    return edit


def fc(inputs: int) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({"fc.weight": np.zeros((HIDDEN, inputs), "f2")})


BROKEN: dict[str, tuple[Callable[[Tensors], Any], dict[str, Any], str]] = {
    "an offset beyond the vocabulary": (offset(3, VOCAB), {}, "first 3 to 253"),
    "two draft ids for one token": (offset(5, -1), {}, "maps 1 draft id(s) to a token"),
    "a map of another length": (change(d2t=np.zeros(100, np.int64)), {}, "[100], expected [128]"),
    "no map": (drop("d2t"), {}, "d2t: missing, but draft_vocab_size 128"),
    "no lm_head": (drop("lm_head.weight"), {}, "lm_head.weight: missing, but draft_vocab_size 128"),
    "another draft_vocab_size": (
        lambda tensors: None, {"draft_vocab_size": 100},
        "128 rows, draft_vocab_size in config.json is 100",
    ),
    "an EAGLE-1 head": (fc(2 * HIDDEN), {}, "an EAGLE-1 or EAGLE-2 head; use drafter: eagle"),
    "a head for another model": (fc(3 * 128), {}, "has shape [64, 384], expected [64, 192]"),
    "layers that the target does not have": (
        lambda tensors: None, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}},
        "[2] not in the target, which has layers 0 to 1",
    ),
}  # fmt: skip


def test_a_good_head_is_fine(tmp_path):
    assert found(tmp_path)[0] == []


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_agree_is_named_with_both_numbers(tmp_path, name):
    edit, config, said = BROKEN[name]
    tensors = heads.eagle3(DRAFT)
    edit(tensors)
    problems, _ = found(tmp_path, tensors, heads.eagle3_config(DRAFT) | config)
    assert any(said in problem for problem in problems), problems


def eagle3_lab(lab, tensors, config):
    heads.write_heads(lab.folder / "heads", tensors, config)
    lab.set("backend", "pytorch")
    lab.set("speculation", {"drafter": "eagle3", "heads": {"checkpoint": "./heads"}})
    return lab.path()


def test_check_passes_a_good_head(spectool, lab):
    path = eagle3_lab(lab, heads.eagle3(DRAFT), heads.eagle3_config(DRAFT))
    assert spectool("check", path).code == 0


@pytest.mark.parametrize("name", BROKEN)
def test_check_refuses_every_broken_head(spectool, lab, name):
    edit, config, said = BROKEN[name]
    tensors = heads.eagle3(DRAFT)
    edit(tensors)
    ran = spectool("check", eagle3_lab(lab, tensors, heads.eagle3_config(DRAFT) | config))
    assert ran.code == 2
    assert said in ran.err


def test_another_rope_is_a_note(tmp_path):
    problems, notes = found(tmp_path, rope_scaling=LLAMA3_ROPE)
    assert problems == []
    assert any("rope" in note for note in notes)
