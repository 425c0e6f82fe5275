"""Heads that would load and draft noise: refused by name and shape, all problems at once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.checkpoint.drafts.layouts import (
    DRAFT,
    HIDDEN,
    LAYOUTS,
    TARGET,
    VOCAB,
    core,
    llama_config,
    safeailab,
    write,
)
from tests.tiny import write_checkpoint
from toolkit.checkpoint.drafts.eagle3 import Eagle3Form
from toolkit.checkpoint.drafts.kinds import (
    eagle3_signs,
    refuse_head_as_model,
    whole_model_signs,
)
from toolkit.checkpoint.drafts.write import prepare_eagle3
from toolkit.checkpoint.heads.source import open_head_files
from toolkit.checkpoint.source import open_source
from toolkit.errors import CheckpointError


def problems(tmp_path, tensors, config, release=(1, 2)):
    source = open_head_files(write(tmp_path / "in", tensors, config), None)
    with pytest.raises(CheckpointError) as caught:
        prepare_eagle3(source, TARGET, tmp_path / "out", Eagle3Form(release=release))
    assert not (tmp_path / "out").exists()
    return caught.value.problems


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_missing_lm_head_with_a_reduced_vocabulary_is_refused(tmp_path, layout):
    tensors, config = LAYOUTS[layout]()
    del tensors["lm_head.weight"]
    (found,) = problems(tmp_path, tensors, config)
    assert found.startswith(
        "lm_head.weight: missing, but draft_vocab_size 128 differs from the target's 512"
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_d2t_of_another_length_is_refused(tmp_path, layout):
    tensors, config = LAYOUTS[layout]()
    tensors["d2t"] = np.zeros(100, np.int64)
    assert problems(tmp_path, tensors, config) == [
        "d2t: has shape [100], expected [128]: one entry for each draft token"
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_fc_of_two_hidden_states_is_another_kind_of_head(tmp_path, layout):
    tensors, config = LAYOUTS[layout]()
    tensors["fc.weight"] = np.zeros((HIDDEN, 2 * HIDDEN), np.float16)
    (found,) = problems(tmp_path, tensors, config)
    assert found.startswith("fc.weight: has shape [64, 128], 128 = 2 x 64 inputs: an EAGLE-1 or")


def test_a_d2t_that_leaves_the_target_is_refused(tmp_path):
    tensors, config = safeailab()
    tensors["d2t"] = tensors["d2t"].copy()
    tensors["d2t"][[100, 127]] = 500  # 100 + 500 and 127 + 500, of 512
    (found,) = problems(tmp_path, tensors, config)
    assert found == (
        "d2t: maps 2 draft id(s) outside the target's 512 tokens, first 100 to 600; the head is "
        "for another vocabulary"
    )


def test_a_d2t_that_maps_two_drafts_to_one_token_is_refused(tmp_path):
    tensors, config = safeailab()
    tensors["d2t"] = tensors["d2t"].copy()
    tensors["d2t"][1] = -1  # 1 - 1 = 0, which draft 0 has
    (found,) = problems(tmp_path, tensors, config)
    assert found == "d2t: maps 1 draft id(s) to a token that another one has"


def test_a_missing_d2t_is_refused(tmp_path):
    tensors, config = safeailab()
    del tensors["d2t"]
    (found,) = problems(tmp_path, tensors, config)
    assert found.startswith("d2t: missing, but draft_vocab_size 128 differs from the target's 512")


def test_a_d2t_that_tensorrt_llm_would_ignore_is_refused(tmp_path):
    tensors = core() | {
        "lm_head.weight": np.zeros((VOCAB, HIDDEN), np.float16),
        "d2t": np.flip(np.arange(VOCAB)) - np.arange(VOCAB),
    }
    (found,) = problems(tmp_path, tensors, llama_config(draft_vocab_size=VOCAB))
    assert found.startswith("d2t: reorders a vocabulary that is as large as the target's")


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (np.arange(VOCAB) % 8 == 0, "t2d: marks 64 tokens, the draft vocabulary has 128"),
        (np.arange(VOCAB) % 4 == 1, "t2d: does not mark 128 of the tokens that d2t maps to"),
        (np.ones(100, bool), "t2d: has shape [100], expected [512]"),
    ],
)
def test_t2d_must_agree_with_d2t(tmp_path, mask, said):
    tensors, config = safeailab()
    assert problems(tmp_path, tensors | {"t2d": mask}, config) == [said]


def test_two_names_for_the_layer_are_two_heads(tmp_path):
    tensors = core() | core("layers.0.")
    found = problems(tmp_path, tensors, llama_config(draft_vocab_size=DRAFT))
    assert found == ["has tensors of midlayer.* and of layers.0.*: two heads in one file"]


def test_every_wrong_tensor_is_named_with_its_shape(tmp_path):
    tensors, config = safeailab()
    del tensors["midlayer.hidden_norm.weight"]
    tensors["midlayer.self_attn.q_proj.weight"] = np.zeros((64, 64), np.float16)
    tensors["norm.weight"] = np.zeros(HIDDEN, np.int8)
    tensors["lm_head.weight"] = np.zeros((100, HIDDEN), np.float16)
    tensors["midlayer.mlp.gate_proj.bias"] = np.zeros(224, np.float16)
    tensors["extra"] = np.zeros(1, np.float16)
    assert problems(tmp_path, tensors, config) == [
        "lm_head.weight: has 100 rows, draft_vocab_size in config.json is 128; they must be equal",
        "midlayer.self_attn.q_proj.weight: has shape [64, 64], expected [64, 128]",
        "midlayer.hidden_norm.weight: missing; expected shape [64]",
        "midlayer.mlp.up_proj.bias: missing; expected shape [224]",
        "midlayer.mlp.down_proj.bias: missing; expected shape [64]",
        "norm.weight: has dtype int8, expected one of float16, bfloat16, float32, float64",
        "extra: unexpected; no EAGLE-3 head has this tensor",
    ]


def test_a_head_for_another_model_is_told_apart_by_its_config(tmp_path):
    tensors, _ = safeailab()
    config = llama_config(draft_vocab_size=DRAFT, vocab_size=520, target_hidden_size=128)
    found = problems(tmp_path, tensors, config)
    assert found[:2] == [
        "config.json: target_hidden_size is 128, the target's hidden_size is 64: the head is for "
        "another model",
        "config.json: vocab_size is 520, the target's is 512: the head is for another vocabulary",
    ]


@pytest.mark.parametrize(
    ("layout", "layers", "beyond"),
    [("ModelOpt", [1, 4, 8], "[8]"), ("speculators", [0, 2, 9], "[-1, 8]")],
)
def test_captured_layers_must_exist(tmp_path, layout, layers, beyond):
    tensors, config = LAYOUTS[layout]()
    place = config if layout == "speculators" else config["eagle_config"]
    place["eagle_aux_hidden_state_layer_ids"] = layers
    (found,) = problems(tmp_path, tensors, config)
    assert f"{beyond} not in the target, which has layers 0 to 7" in found


def test_layers_that_count_states_are_told_how_to_count(tmp_path):
    tensors, config = LAYOUTS["ModelOpt"]()
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [4, 6, 9]
    (found,) = problems(tmp_path / "beyond", tensors, config)
    assert "number states" not in found
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [4, 6, 8]
    (found,) = problems(tmp_path, tensors, config)
    assert found.endswith(
        "the head seems to number states, of which 0 is the embedding: write each one less"
    )


def test_captured_layers_and_fc_must_agree(tmp_path):
    tensors, config = LAYOUTS["ModelOpt"]()
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 3, 4, 5]
    assert problems(tmp_path, tensors, config) == [
        "fc.weight: has shape [64, 192], expected [64, 256]"
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("norm_before_residual", True),
        ("use_last_layernorm", False),
        ("use_mtp_layernorm", True),
        ("parallel_draft_step", 2),
        ("use_aux_hidden_state", False),
        ("use_input_layernorm_in_first_layer", False),
        ("eh_proj_before_attn", True),
    ],
)
def test_heads_that_tensorrt_llm_would_compute_otherwise_are_refused(tmp_path, key, value):
    tensors, config = safeailab()
    found = problems(tmp_path, tensors, config | {"eagle_config": {key: value}}, release=(1, 4))
    assert len(found) == 1
    assert found[0].startswith(f"config.json: {key} is {value!r}")
    assert "TensorRT-LLM does not compute" in found[0]


@pytest.mark.parametrize(
    "key", ["norm_before_fc", "fc_norm", "norm_output", "return_hidden_post_norm"]
)
def test_what_only_a_newer_release_computes_names_that_release(tmp_path, key):
    tensors, config = safeailab()
    if key == "norm_before_fc":
        tensors["input_norm.weight"] = np.ones(3 * HIDDEN, np.float16)
    if key == "fc_norm":
        tensors |= {f"fc_norm.{i}.weight": np.ones(HIDDEN, np.float16) for i in range(3)}
    (found,) = problems(tmp_path, tensors, config | {key: True})
    assert found.endswith("which TensorRT-LLM 1.2 ignores; use 1.3 or newer")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": "many"}, "hidden_size is 'many', expected a positive integer"),
        ({"draft_vocab_size": -1}, "draft_vocab_size is -1, expected a positive integer"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2; an EAGLE-3 head has 1"),
        ({"rope_theta": 0}, "rope_theta is 0, expected a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, expected a positive number"),
        ({"rope_scaling": "llama3"}, "rope_scaling is 'llama3', expected an object or null"),
        ({"torch_dtype": "int8"}, "torch_dtype is 'int8', expected one of float16, bfloat16"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0, expected a positive"),
        ({"hidden_act": 1}, "hidden_act is 1, expected a name"),
        ({"head_dim": None, "num_attention_heads": 6}, "not a multiple of num_attention_heads"),
        ({"num_key_value_heads": 3}, "4 is not a multiple of num_key_value_heads 3"),
        ({"kv_lora_rank": 512}, "heads with latent attention are not supported"),
        ({"quantization_config": {"quant_algo": "FP8"}}, "the head is quantised"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": 3}}, "expected a list of layers"),
    ],
)
def test_configs_that_cannot_be_read_say_why(tmp_path, changes, said):
    tensors, config = safeailab()
    (found,) = problems(tmp_path, tensors, config | changes)
    assert said in found


def test_a_whole_model_is_no_head(tmp_path):
    source = open_source(str(write_checkpoint(tmp_path / "model")))
    with pytest.raises(CheckpointError, match=r"is a whole model .* use drafter: draft_target"):
        prepare_eagle3(source, TARGET, tmp_path / "out", Eagle3Form())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_are_recognised_and_models_are_not(tmp_path, layout):
    tensors, config = LAYOUTS[layout]()
    assert eagle3_signs(config)
    assert eagle3_signs({}, tensors)
    assert not whole_model_signs(tensors)
    model = open_source(str(write_checkpoint(tmp_path / "model")))
    assert eagle3_signs(model.config, model.tensors) == []
    assert whole_model_signs(model.tensors)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_named_as_a_draft_model_is_refused(tmp_path, layout, file):
    path = write(tmp_path / "draft", *LAYOUTS[layout](), file)
    with pytest.raises(CheckpointError) as caught:
        refuse_head_as_model(path)
    (found,) = caught.value.problems
    assert found.startswith("is an EAGLE-3 head (")
    assert f"use drafter: eagle3 with heads: {{checkpoint: {path}}}" in found


def test_a_head_is_known_by_its_tensors_alone(tmp_path):
    path = write(tmp_path / "draft", core(), {"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(CheckpointError, match=r"EAGLE-3 head \(d2t, midlayer\.hidden_norm"):
        refuse_head_as_model(path)


def test_a_head_on_the_hub_is_known_by_its_config(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    commit, repository = "0123456789" * 4, tmp_path / "models--org--head"
    snapshot = repository / "snapshots" / commit
    write(snapshot, *LAYOUTS["ModelOpt"]())
    (snapshot / "model.safetensors").unlink()  # nobody has fetched the weights
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    with pytest.raises(CheckpointError, match="LlamaForCausalLMEagle3, draft_vocab_size 128"):
        refuse_head_as_model("org/head", offline=True)


def test_models_may_be_drafts(tmp_path):
    refuse_head_as_model(str(write_checkpoint(tmp_path / "model")))
    (tmp_path / "draft.gguf").write_bytes(b"GGUF")
    refuse_head_as_model(str(tmp_path / "draft.gguf"))
    (tmp_path / "empty").mkdir()
    refuse_head_as_model(str(tmp_path / "empty"))  # open_source says what is missing
