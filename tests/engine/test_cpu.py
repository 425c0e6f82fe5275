"""What a built engine directory holds, and what its digest is taken over."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from toolkit.engine.cpu import build_cpu_engine, check_limits, engine_spec
from toolkit.engine.directory import read_engine
from toolkit.errors import InputError
from toolkit.recipe.schema import EngineLimits

# Written by trtllm-build 0.16 for a tiny Llama.
GOLDEN = Path(__file__).parents[1] / "golden" / "engine016_llama_tp2.json"


def config_of(engine):
    return json.loads((engine / "config.json").read_text())


def test_the_config_has_the_shape_that_trtllm_build_writes(build):
    golden = json.loads(GOLDEN.read_text())["config"]
    built = build(tp=2)
    config = config_of(built.engine)
    assert set(golden) <= set(config)
    assert set(config["build_config"]) <= set(golden["build_config"])
    assert set(config["build_config"]["plugin_config"]) <= set(
        golden["build_config"]["plugin_config"]
    )
    for key in ("architecture", "vocab_size", "num_hidden_layers", "head_size", "hidden_act"):
        assert config["pretrained_config"][key] == golden["pretrained_config"][key]
    assert config["build_config"]["kv_cache_type"] == golden["build_config"]["kv_cache_type"]


def test_pretrained_config_is_the_checkpoints(build):
    built = build("qwen2", tp=2)
    checkpoint = json.loads((built.checkpoint / "config.json").read_text())
    assert config_of(built.engine)["pretrained_config"] == checkpoint


def test_the_same_checkpoint_gives_the_same_bytes(build, tmp_path):
    built = build()
    limits = EngineLimits(max_batch_size=4, max_input_len=200, max_seq_len=256)
    build_cpu_engine(built.checkpoint, tmp_path, limits)
    for name in ("config.json", "model.xml", "model.bin"):
        assert (tmp_path / name).read_bytes() == (built.engine / name).read_bytes()


def test_a_length_that_the_model_was_not_made_for_is_refused(build, tmp_path):
    limits = EngineLimits(max_input_len=256, max_seq_len=257)
    with pytest.raises(
        InputError, match=r"257 is above the model's max_position_embeddings \(256\)"
    ):
        build_cpu_engine(build().checkpoint, tmp_path, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_sliding_window_is_never_exceeded(build):
    settings = read_engine(build("mistral", config="sliding window").engine).settings
    longer = replace(settings, max_position_embeddings=4096)
    check_limits(longer, EngineLimits(max_input_len=100, max_seq_len=256))
    with pytest.raises(InputError, match=r"257 is above the model's sliding_window \(256\)"):
        check_limits(longer, EngineLimits(max_input_len=100, max_seq_len=257))


def test_the_digest_is_over_what_changes_the_bytes():
    limits = EngineLimits(max_input_len=100, max_seq_len=200)
    spec = engine_spec("abc", limits)
    assert engine_spec("abc", limits) == spec
    assert engine_spec("abd", limits) != spec
    assert engine_spec("abc", limits.model_copy(update={"max_batch_size": 1})) != spec
    assert spec["openvino"]
    json.dumps(spec)
