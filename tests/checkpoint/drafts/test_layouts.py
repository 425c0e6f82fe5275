"""Four layouts of one EAGLE-3 head become one directory, tensors untouched."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.checkpoint.drafts.layouts import (
    DRAFT,
    HIDDEN,
    LAYOUTS,
    ROPE,
    TARGET,
    VOCAB,
    core,
    llama_config,
    safeailab,
    write,
)
from toolkit.checkpoint.drafts.eagle3 import Eagle3Form
from toolkit.checkpoint.drafts.target import TargetFacts, target_facts
from toolkit.checkpoint.drafts.write import prepare_eagle3, write_tensors
from toolkit.checkpoint.heads.source import open_head_files
from toolkit.errors import CheckpointError

FORM = Eagle3Form()


def prepared(tmp_path, tensors, config, file="model.safetensors", form=FORM, target=TARGET):
    source = open_head_files(write(tmp_path / "in", tensors, config, file), None)
    return prepare_eagle3(source, target, tmp_path / "out", form)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_becomes_the_same_tensors(tmp_path, layout, file):
    prepared(tmp_path, *LAYOUTS[layout](), file)
    found = load_file(tmp_path / "out" / "model.safetensors")
    wanted = core()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].tobytes() == value.tobytes(), name


def test_every_layout_becomes_the_same_bytes(tmp_path):
    for layout in LAYOUTS:
        prepared(tmp_path / layout, *LAYOUTS[layout]())
    files = [tmp_path / layout / "out" / "model.safetensors" for layout in LAYOUTS]
    assert len({file.read_bytes() for file in files}) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_becomes_a_config_that_names_the_draft_vocabulary(tmp_path, layout):
    prepared(tmp_path, *LAYOUTS[layout]())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    eagle = config.pop("eagle_config", None)
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 224,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
        "draft_vocab_size": 128,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": ROPE,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "bias": False,
        "attention_bias": False,
        "mlp_bias": False,
    }
    # Both tools name the same layers; speculators counts from one more.
    says = {"ModelOpt", "speculators"}
    assert eagle == ({"eagle_aux_hidden_state_layer_ids": [1, 3, 4]} if layout in says else None)


def test_captured_layers_are_told_in_tensorrt_llms_numbers(tmp_path):
    assert prepared(tmp_path / "a", *LAYOUTS["speculators"]()).captured_layers == (1, 3, 4)
    assert prepared(tmp_path / "b", *LAYOUTS["ModelOpt"]()).captured_layers == (1, 3, 4)
    assert prepared(tmp_path / "c", *LAYOUTS["SafeAILab"]()).captured_layers is None


def test_a_converted_head_that_kept_tensorrt_llms_numbers_is_known_by_them(tmp_path):
    # 8 layers: TensorRT-LLM and SGLang capture 1, 8 / 2 - 1 and 8 - 4 by default, vLLM 2, 4, 5.
    tensors, config = LAYOUTS["speculators"]()
    own = prepared(tmp_path / "own", tensors, config)
    config["eagle_aux_hidden_state_layer_ids"] = [1, 3, 4]
    converted = prepared(tmp_path / "converted", tensors, config)
    assert own.captured_layers == converted.captured_layers == (1, 3, 4)
    assert "[2, 4, 5] taken as numbers of reading layers" in own.notes[0]
    assert "[1, 3, 4] taken as they are" in converted.notes[0]


def test_what_was_prepared_is_prepared_again_to_the_same_bytes(tmp_path):
    prepared(tmp_path, *LAYOUTS["speculators"]())
    again = open_head_files(str(tmp_path / "out"), None)
    prepare_eagle3(again, TARGET, tmp_path / "again", FORM)
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "out" / file).read_bytes()


def test_a_release_may_ask_for_the_other_name_of_the_layer(tmp_path):
    prepared(tmp_path, *safeailab(), form=Eagle3Form(layer="layers.0."))
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == core("layers.0.").keys()


def test_draft_vocab_size_is_written_when_the_config_lacks_it(tmp_path):
    tensors, _ = safeailab()
    plan = prepared(tmp_path, tensors, llama_config())
    assert plan.config["draft_vocab_size"] == DRAFT


def test_without_lm_head_the_targets_is_used_if_the_vocabulary_is_whole(tmp_path):
    tensors = core()
    del tensors["lm_head.weight"], tensors["d2t"]
    plan = prepared(tmp_path, tensors, llama_config())
    assert plan.config["draft_vocab_size"] == VOCAB
    assert "lm_head.weight" not in plan.tensors


def test_a_whole_vocabulary_needs_no_map(tmp_path):
    tensors = core() | {
        "lm_head.weight": np.zeros((VOCAB, HIDDEN), np.float16),
        "d2t": np.zeros(VOCAB, np.int64),
    }
    plan = prepared(tmp_path, tensors, llama_config(draft_vocab_size=VOCAB))
    assert "d2t" not in plan.tensors
    assert "lm_head.weight" in plan.tensors


def test_biases_are_read_from_the_tensors(tmp_path):
    tensors = core() | {"fc.bias": np.zeros(HIDDEN, np.float16)}
    plan = prepared(tmp_path, tensors, llama_config(draft_vocab_size=DRAFT))
    assert plan.config["bias"] is True
    assert plan.config["attention_bias"] is False
    assert "fc.bias" in plan.tensors


def test_all_biases_of_the_attention_go_together(tmp_path):
    tensors = core() | {
        f"midlayer.self_attn.{name}_proj.bias": np.zeros(size, np.float16)
        for name, size in {"q": 64, "k": 32, "v": 32, "o": 64}.items()
    }
    plan = prepared(tmp_path, tensors, llama_config(draft_vocab_size=DRAFT))
    assert (plan.config["attention_bias"], plan.config["mlp_bias"]) == (True, False)
    assert "midlayer.self_attn.o_proj.bias" in plan.tensors


def test_what_a_config_leaves_out_is_worked_out(tmp_path):
    config = llama_config(draft_vocab_size=DRAFT)
    for key in ("head_dim", "torch_dtype"):
        del config[key]
    plan = prepared(tmp_path, core(), config)
    assert plan.config["head_dim"] == 16  # 64 / 4
    assert plan.config["torch_dtype"] == "float16"  # fc.weight's


def test_without_kv_heads_every_head_has_its_own(tmp_path):
    tensors = core() | {
        f"midlayer.self_attn.{name}_proj.weight": np.zeros((64, 128), np.float16) for name in "kv"
    }
    config = llama_config(draft_vocab_size=DRAFT)
    del config["num_key_value_heads"]
    assert prepared(tmp_path, tensors, config).config["num_key_value_heads"] == 4


@pytest.mark.parametrize("key", ["norm_before_fc", "norm_output", "return_hidden_post_norm"])
def test_newer_switches_are_written_where_the_loader_looks(tmp_path, key):
    tensors = core()
    if key == "norm_before_fc":
        tensors["input_norm.weight"] = np.ones(3 * HIDDEN, np.float16)
    config = llama_config(draft_vocab_size=DRAFT, **{key: True})
    plan = prepared(tmp_path, tensors, config, form=Eagle3Form(release=(1, 3)))
    place = plan.config if key == "norm_output" else plan.config["eagle_config"]
    assert place[key] is True


def test_a_norm_for_each_captured_state(tmp_path):
    tensors = core() | {f"fc_norm.{i}.weight": np.ones(HIDDEN, np.float16) for i in range(3)}
    config = llama_config(draft_vocab_size=DRAFT, fc_norm=True)
    plan = prepared(tmp_path, tensors, config, form=Eagle3Form(release=(1, 3)))
    assert plan.config["fc_norm"] is True
    assert "fc_norm.2.weight" in plan.tensors


@pytest.mark.parametrize("changes", [{"rope_theta": 1e6}, {"rope_scaling": None}])
def test_either_half_of_another_rotary_embedding_gets_a_note(tmp_path, changes):
    (note,) = prepared(tmp_path, core(), llama_config(draft_vocab_size=DRAFT, **changes)).notes
    assert "right only if the head was trained so" in note
    assert "the default" not in note


def test_a_head_of_another_width_keeps_its_own_embeddings(tmp_path):
    wide = TargetFacts(
        hidden=96, vocab=VOCAB, layers=8, rope_theta=500000.0, rope_scaling=ROPE, dtype="float16"
    )
    tensors = core() | {
        "fc.weight": np.zeros((HIDDEN, 3 * 96), np.float16),
        "embed_tokens.weight": np.zeros((VOCAB, HIDDEN), np.float16),
    }
    config = llama_config(draft_vocab_size=DRAFT, target_hidden_size=96)
    plan = prepared(tmp_path, tensors, config, target=wide)
    assert plan.config["target_hidden_size"] == 96
    assert "embed_tokens.weight" in plan.tensors


def test_as_many_states_are_joined_as_layers_are_captured(tmp_path):
    tensors = core() | {"fc.weight": np.zeros((HIDDEN, 2 * HIDDEN + HIDDEN * 2), np.float16)}
    eagle = {"eagle_aux_hidden_state_layer_ids": [0, 2, 4, 7]}
    plan = prepared(tmp_path, tensors, llama_config(draft_vocab_size=DRAFT, eagle_config=eagle))
    assert plan.captured_layers == (0, 2, 4, 7)


def test_norms_before_fc_are_carried_where_the_release_computes_them(tmp_path):
    tensors = core() | {"input_norm.weight": np.ones(3 * HIDDEN, np.float16)}
    config = llama_config(draft_vocab_size=DRAFT, norm_before_fc=True)
    plan = prepared(tmp_path, tensors, config, form=Eagle3Form(release=(1, 3)))
    assert plan.config["eagle_config"] == {"norm_before_fc": True}
    assert "input_norm.weight" in plan.tensors


def test_notes_say_where_rope_lengths_and_embeddings_differ(tmp_path):
    tensors, _ = LAYOUTS["SpecForge"]()
    config = llama_config(
        draft_vocab_size=DRAFT,
        rope_theta=None,
        rope_scaling=None,
        max_position_embeddings=256,
        torch_dtype="bfloat16",
    )
    notes = prepared(tmp_path, tensors, config).notes
    assert len(notes) == 4
    assert "rope_theta 10000.0 (not in config.json: the default)" in notes[0]
    assert "the target has 500000.0" in notes[0]
    assert "max_position_embeddings 256, the target's is 1024" in notes[1]
    assert notes[2] == "weights are bfloat16, the target's are float16"
    assert notes[3].startswith("embed_tokens.weight is left out")


@pytest.mark.parametrize("layout", ["SafeAILab", "ModelOpt"])
def test_only_speculators_layers_need_a_word(tmp_path, layout):
    assert prepared(tmp_path, *LAYOUTS[layout]()).notes == ()


def test_a_head_that_agrees_with_its_target_gets_no_note(tmp_path):
    assert prepared(tmp_path, *safeailab()).notes == ()


def test_bfloat16_travels_as_it_is(tmp_path):
    tensors, config = safeailab()
    tensors = {
        name: value.astype(ml_dtypes.bfloat16) if value.dtype == np.float16 else value
        for name, value in tensors.items()
    }
    prepared(tmp_path, tensors, config | {"torch_dtype": "bfloat16"})
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found["fc.weight"].tobytes() == tensors["fc.weight"].tobytes()


def test_target_facts_come_from_any_config():
    text = {"hidden_size": 8, "vocab_size": 16, "num_hidden_layers": 2, "torch_dtype": "float16"}
    nested = {"text_config": text, "architectures": ["SomethingForConditionalGeneration"]}
    facts = target_facts(nested, "x")
    assert facts == target_facts(text, "x")
    assert (facts.hidden, facts.vocab, facts.layers, facts.rope_theta) == (8, 16, 2, 10000.0)
    assert facts.dtype == target_facts({**text, "torch_dtype": None, "dtype": "float16"}, "x").dtype
    assert facts.dtype == "float16"
    with pytest.raises(CheckpointError, match="num_hidden_layers is None"):
        target_facts({"hidden_size": 8, "vocab_size": 16}, "x")
    with pytest.raises(CheckpointError, match="hidden_size is 0"):
        target_facts({**text, "hidden_size": 0}, "x")


def test_tensors_are_written_by_blocks_of_rows(tmp_path, monkeypatch):
    import toolkit.checkpoint.drafts.write as module

    monkeypatch.setattr(module, "_BLOCK", 256)  # two rows of 64 float16
    source = open_head_files(write(tmp_path / "in", *safeailab(), "pytorch_model.bin"), None)
    write_tensors(source, {"a": "norm.weight", "b": "fc.weight"}, tmp_path / "out.safetensors")
    found = load_file(tmp_path / "out.safetensors")
    assert found["b"].tobytes() == core()["fc.weight"].tobytes()
    assert found["a"].tobytes() == core()["norm.weight"].tobytes()
