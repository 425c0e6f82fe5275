"""config.json: both spellings of rotary embedding, defaults of each architecture, quantisation."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.tiny import LLAMA3_ROPE, hf_config
from toolkit.checkpoint.convert import checkpoint_config, convert
from toolkit.checkpoint.read import Checkpoint
from toolkit.checkpoint.source import open_source
from toolkit.recipe.schema import ModelSpec

SPEC = ModelSpec(checkpoint="m", dtype="float32")


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def test_rope_scaling_is_kept_whole():
    config = checkpoint_config(hf_config("llama", rope_scaling=LLAMA3_ROPE), SPEC)
    assert config["rotary_scaling"] == LLAMA3_ROPE


def test_the_newer_spelling_of_rotary_embedding_means_the_same():
    old = hf_config("llama", rope_theta=500000.0, rope_scaling=LLAMA3_ROPE)
    parameters = {**LLAMA3_ROPE, "rope_theta": 500000.0}
    new = without(old, "rope_theta", "rope_scaling") | {"rope_parameters": parameters}
    assert checkpoint_config(new, SPEC) == checkpoint_config(old, SPEC)


def test_a_default_kind_of_rotary_embedding_is_no_scaling():
    parameters = {"rope_theta": 10000.0, "rope_type": "default"}
    new = without(hf_config("llama"), "rope_theta") | {"rope_parameters": parameters}
    assert checkpoint_config(new, SPEC) == checkpoint_config(hf_config("llama"), SPEC)


@pytest.mark.parametrize(
    ("family", "key", "expected"),
    [
        # What each architecture means by a key that its config.json leaves out.
        ("llama", "head_dim", 16),
        ("qwen2", "head_dim", 16),
        ("qwen3", "head_dim", 128),
        ("gemma", "head_dim", 256),
        ("llama", "num_key_value_heads", 4),
    ],
)
def test_a_key_that_is_left_out_means_what_the_architecture_says(family, key, expected):
    config = checkpoint_config(without(hf_config(family), key), SPEC)
    name = {"head_dim": "head_size"}.get(key, key)
    assert config[name] == expected


def test_a_head_that_is_not_hidden_size_over_heads_is_explicit():
    config = checkpoint_config(hf_config("qwen3", head_dim=128), SPEC)
    assert (config["head_size"], config["rotary_embedding_dim"]) == (128, 128)
    assert (config["qk_layernorm"], config["qwen_type"]) == (True, "qwen3")
    assert config["attn_bias"] is False


def test_gemmas_activation_is_the_tanh_form_even_in_early_files():
    early = hf_config("gemma", hidden_act="gelu", hidden_activation=None)
    assert checkpoint_config(early, SPEC)["hidden_act"] == "gelu_pytorch_tanh"


@pytest.mark.parametrize(
    ("quantization", "algorithm"), [(None, None), ("w8a16", "W8A16"), ("W4A16", "W4A16")]
)
def test_weight_only_quantisation_is_left_to_the_build(quantization, algorithm):
    spec = ModelSpec(checkpoint="m", quantization=quantization)
    config = checkpoint_config(hf_config("llama"), spec)
    assert config["quantization"] == {"quant_algo": algorithm, "kv_cache_quant_algo": None}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma"])
def test_what_transformers_saves_today_converts(tmp_path, family):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.tiny import write_tokenizer

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**without(hf_config(family), "architectures"))
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "m", max_shard_size="100KB")
    write_tokenizer(tmp_path / "m")
    saved = json.loads((tmp_path / "m" / "config.json").read_text())
    assert "rope_theta" not in saved  # this release's spelling
    spec = ModelSpec(checkpoint=str(tmp_path / "m"), dtype="float32")
    convert(open_source(str(tmp_path / "m")), tmp_path / "out", spec)
    found = Checkpoint(tmp_path / "out").tensor("transformer.layers.1.mlp.fc.weight")
    gate = model.state_dict()["model.layers.1.mlp.gate_proj.weight"].numpy()
    np.testing.assert_array_equal(found, gate)
