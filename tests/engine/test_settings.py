"""A config that the engine cannot run is refused with everything that is wrong with it."""

import pytest

from toolkit.engine.settings import decoder_settings
from toolkit.errors import CheckpointError

CONFIG = {
    "architecture": "LlamaForCausalLM",
    "dtype": "float32",
    "vocab_size": 250,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "hidden_act": "silu",
    "norm_epsilon": 1e-6,
    "max_position_embeddings": 256,
    "rotary_base": 10000.0,
    "rotary_scaling": None,
    "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
}


def refused(**changes):
    with pytest.raises(CheckpointError) as caught:
        decoder_settings({**CONFIG, **changes}, "ckpt")
    return caught.value.problems


def test_sizes_left_out_follow_from_the_others():
    settings = decoder_settings(CONFIG, "ckpt")
    assert (settings.head_size, settings.num_kv_heads) == (16, 2)
    assert not settings.int8_weights


def test_every_problem_is_reported_at_once():
    problems = refused(
        architecture="GPTJForCausalLM",
        hidden_act="relu",
        quantization={"quant_algo": "W4A16", "kv_cache_quant_algo": "FP8"},
        rotary_scaling={"rope_type": "yarn", "factor": 2.0},
        rotary_embedding_dim=8,
    )
    assert len(problems) == 6
    for word in ("GPTJForCausalLM", "relu", "W4A16", "FP8", "yarn", "rotary_embedding_dim"):
        assert any(word in problem for problem in problems)


def test_missing_keys_are_named():
    config = {key: value for key, value in CONFIG.items() if key not in ("dtype", "vocab_size")}
    with pytest.raises(CheckpointError) as caught:
        decoder_settings(config, "ckpt")
    assert caught.value.problems == [
        "config.json: dtype is missing",
        "config.json: vocab_size is missing",
    ]


def test_a_near_miss_is_suggested():
    (problem,) = refused(architecture="LlamaForCasualLM")
    assert "did you mean 'LlamaForCausalLM'?" in problem


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [(None, 256), ({"type": "linear", "factor": 4.0}, 1024), (LLAMA3, 256)],
    ids=["unscaled", "linear stretches it", "llama3 has it included"],
)
def test_the_longest_position_follows_the_scaling(scaling, longest):
    settings = decoder_settings({**CONFIG, "rotary_scaling": scaling}, "ckpt")
    assert settings.max_position_embeddings == longest


@pytest.mark.parametrize("value", [0, -1, "64", 2.5, True, None])
def test_a_size_must_be_a_positive_integer(value):
    problems = refused(hidden_size=value)
    assert any("hidden_size" in problem for problem in problems)


def test_heads_must_share_the_key_value_heads_evenly():
    assert any("num_key_value_heads" in problem for problem in refused(num_key_value_heads=3))
