"""EAGLE-3 heads: every disagreement that lets a head load and then accept next to nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests import tiny_heads as heads
from tests.tiny import HIDDEN, LLAMA3_ROPE, VOCAB, hf_config
from toolkit.checkpoint.config import checkpoint_config
from toolkit.checkpoint.heads.source import open_head_files
from toolkit.preflight.p5_shapes import eagle3
from toolkit.recipe.schema import ModelSpec

DRAFT = 128
LAYERS = {"eagle_aux_hidden_state_layer_ids": [0, 1]}


def target(**changes):
    return checkpoint_config(hf_config("llama", **changes), ModelSpec(checkpoint="target"))


def found(tmp_path, tensors=None, config=None, **changes):
    """(problems, notes)"""
    path = heads.write_heads(
        tmp_path / "heads",
        heads.eagle3(DRAFT) if tensors is None else tensors,
        heads.eagle3_config(DRAFT) if config is None else config,
    )
    findings = list(eagle3(open_head_files(path, None), target(**changes)))
    return (
        [f.text.replace(path, "HEADS") for f in findings if f.level == "problem"],
        [f.text for f in findings if f.level == "note"],
    )


def test_a_good_head_is_fine(tmp_path):
    assert found(tmp_path) == ([], [])


def test_a_head_with_the_targets_whole_vocabulary_needs_no_map(tmp_path):
    tensors = heads.eagle3(VOCAB)
    for name in ("d2t", "t2d", "lm_head.weight"):
        del tensors[name]
    assert found(tmp_path, tensors, heads.eagle_config(bias=False))[0] == []


def test_an_offset_beyond_the_targets_vocabulary(tmp_path):
    tensors = heads.eagle3(DRAFT)
    tensors["d2t"][[3, 127]] = [VOCAB, VOCAB]  # 3 + 250 = 253
    problems, _ = found(tmp_path, tensors)
    assert problems[0].startswith(
        "HEADS: d2t maps 2 draft id(s) outside the target's 250 tokens, first 3 to 253"
    )


def test_two_draft_ids_for_one_token(tmp_path):
    tensors = heads.eagle3(DRAFT)
    tensors["d2t"][5] = -1  # draft 5 -> 4, as draft 4
    assert found(tmp_path, tensors)[0] == ["HEADS: d2t maps 1 draft id(s) to a token twice"]


def test_maps_of_other_lengths(tmp_path):
    tensors = heads.eagle3(DRAFT)
    tensors["d2t"] = np.zeros(100, np.int64)
    tensors["t2d"] = np.ones(240, np.bool_)
    assert found(tmp_path, tensors)[0] == [
        "HEADS: d2t has 100 entries, the draft vocabulary has 128",
        "HEADS: t2d has 240 entries, the target has 250 tokens",
        "HEADS: t2d marks 240 tokens, the draft vocabulary has 128",
    ]


def test_no_map_for_a_smaller_vocabulary(tmp_path):
    tensors = heads.eagle3(DRAFT)
    del tensors["d2t"]
    (problem,) = found(tmp_path, tensors)[0]
    assert problem.startswith("HEADS: d2t is missing, but draft_vocab_size 128 differs from")


def test_no_lm_head_for_a_smaller_vocabulary(tmp_path):
    tensors = heads.eagle3(DRAFT)
    del tensors["lm_head.weight"]
    (problem,) = found(tmp_path, tensors)[0]
    assert problem.startswith("HEADS: lm_head.weight is missing, but draft_vocab_size 128 differs")


def test_no_draft_vocab_size_in_config_json(tmp_path):
    config = heads.eagle_config(bias=False)
    (problem,) = found(tmp_path, config=config)[0]
    assert problem == (
        "HEADS/config.json: draft_vocab_size is missing, lm_head.weight has 128 rows (the target's "
        "vocabulary has 250); add draft_vocab_size 128"
    )


def test_an_lm_head_of_other_rows_than_config_json_says(tmp_path):
    config = heads.eagle3_config(100)
    problems, _ = found(tmp_path, config=config)
    assert problems[0] == (
        "HEADS: lm_head.weight has 128 rows, draft_vocab_size in config.json is 100; they must be "
        "equal"
    )


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (2 * HIDDEN, "an EAGLE-1 or EAGLE-2 head; use drafter: eagle with backend: tensorrt"),
        (3 * 128, "it needs 192 = 3 x 64 inputs: the head is for another model"),
    ],
)
def test_fc_reads_three_of_the_targets_hidden_states(tmp_path, inputs, said):
    tensors = heads.eagle3(DRAFT)
    tensors["fc.weight"] = np.zeros((HIDDEN, inputs), np.float16)
    (problem,) = found(tmp_path, tensors)[0]
    assert said in problem


def test_layers_that_the_target_does_not_have(tmp_path):
    named = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    for config in (heads.eagle3_config(DRAFT, **named), heads.eagle3_config(eagle_config=named)):
        (problem,) = found(tmp_path, config=config)[0]
        assert problem.endswith("[2] not in the target, which has layers 0 to 1")
    assert found(tmp_path, config=heads.eagle3_config(DRAFT, **LAYERS))[0] == []


def test_another_rope_is_a_note(tmp_path):
    problems, notes = found(tmp_path, rope_scaling=LLAMA3_ROPE)
    assert problems == []
    assert len(notes) == 1
    assert "right only if the head was trained so" in notes[0]
