"""Damaged and hostile checkpoints: one clear error, all problems in it, nothing written."""

from __future__ import annotations

import json
import os
import shutil
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiny import hf_config, hf_tensors, write_checkpoint
from toolkit.checkpoint.convert import checkpoint_config, convert
from toolkit.checkpoint.safetensors_file import read_header
from toolkit.checkpoint.source import open_source
from toolkit.errors import BuildError, CheckpointError, InputError
from toolkit.recipe.schema import ModelSpec, Parallel


def safetensors(entries, data=b"", *, length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape, offsets, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


BAD_FILES = {
    "empty": (b"", "not a whole safetensors file"),
    "seven bytes": (b"1234567", "not a whole safetensors file"),
    "header longer than the file": (safetensors({}, length=1000), "claims 1000"),
    "header as long as can be said": (safetensors({}, length=2**64 - 1), "not a whole"),
    "not UTF-8": (safetensors(b'{"\xff": 1}'), "not JSON"),
    "not JSON": (safetensors(b"{'a': 1}"), "not JSON"),
    "a list": (safetensors(b"[]"), "not a JSON object"),
    "nested too deep": (safetensors(b"[" * 100_000), "nested too deep"),
    "a number of a million digits": (safetensors(b'{"a": ' + b"9" * 1_000_000 + b"}"), "not JSON"),
    "a name twice": (
        safetensors(
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
            b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
            b"0",
        ),
        "keys occur twice: a",
    ),
    "truncated data": (safetensors({"a": entry([4], [0, 16])}, b"0" * 15), "truncated"),
    "offsets beyond the file": (safetensors({"a": entry([2], [2**60, 2**60 + 8])}), "truncated"),
    "offsets backwards": (safetensors({"a": entry([0], [8, 0])}, b"0" * 8), "hold -8 bytes"),
    "negative offsets": (safetensors({"a": entry([1], [-4, 0])}), "not two positions"),
    "offsets that are no integers": (safetensors({"a": entry([1], [0, 4.0])}), "not two positions"),
    "a negative size": (safetensors({"a": entry([-1], [0, 4])}, b"0000"), "not a list of sizes"),
    "a boolean size": (safetensors({"a": entry([True], [0, 4])}, b"0000"), "not a list of sizes"),
    "sizes that do not fit the bytes": (
        safetensors({"a": entry([3], [0, 16])}, b"0" * 16),
        "hold 16 bytes, but shape [3] of F32 takes 12",
    ),
    "sizes that multiply to far too much": (
        safetensors({"a": entry([2**40, 2**40], [0, 4])}, b"0000"),
        "takes",
    ),
    "overlap": (
        safetensors({"a": entry([2], [0, 8]), "b": entry([2], [4, 12])}, b"0" * 12),
        "b: its data overlaps",
    ),
    "a hole": (
        safetensors({"a": entry([1], [0, 4]), "b": entry([1], [8, 12])}, b"0" * 12),
        "4 bytes before it belong to no tensor",
    ),
    "bytes left over": (safetensors({"a": entry([1], [0, 4])}, b"0" * 9), "5 bytes at the end"),
    "an unknown dtype": (safetensors({"a": entry([1], [0, 4], "F13")}, b"0000"), "'F13' is not"),
    "a dtype that is no string": (safetensors({"a": entry([1], [0, 4], [])}, b"0000"), "is not"),
    "an entry without shape": (safetensors({"a": {"dtype": "F32"}}), "expected dtype, shape"),
    "an entry that is a number": (safetensors({"a": 3}), "expected dtype, shape"),
    "a name with control characters": (safetensors({"\x1b[2J": 3}), r"'\x1b[2J'"),
}


@pytest.mark.parametrize(("content", "said"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_lying_safetensors_file_is_refused(tmp_path, content, said):
    model = write_checkpoint(tmp_path / "my model")
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_source(str(model))
    assert said in str(caught.value)
    assert "model.safetensors" in str(caught.value)
    assert "\x1b" not in str(caught.value)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)
@given(st.data())
def test_no_damage_to_a_header_gets_past_as_anything_but_a_checkpoint_error(tmp_path, data):
    good = safetensors({"a": entry([2, 2], [0, 16]), "b": entry([2], [16, 24])}, bytes(24))
    damaged = bytearray(good[: data.draw(st.integers(0, len(good)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "x.safetensors"
    path.write_bytes(damaged)
    try:
        spans = read_header(path)
    except CheckpointError:
        return
    for span in spans.values():
        assert 0 <= span.start <= span.stop <= len(damaged)
        assert span.stop - span.start == np.prod(span.shape) * span.dtype.itemsize


def problems_of(model, **spec):
    with pytest.raises(CheckpointError) as caught:
        convert(
            open_source(str(model)),
            model.parent / "out",
            ModelSpec(checkpoint=str(model), dtype="float32", **spec),
        )
    assert not (model.parent / "out").exists()
    return caught.value.problems


def test_missing_unexpected_and_misshaped_tensors_are_reported_together(tmp_path):
    tensors = hf_tensors(hf_config("llama"))
    del tensors["model.norm.weight"]
    for i in (0, 1):
        del tensors[f"model.layers.{i}.mlp.up_proj.weight"]
    tensors["model.layers.1.self_attn.k_proj.weight"] = np.zeros((16, 64), np.float32)
    tensors["model.layers.2.mlp.up_proj.weight"] = np.zeros((128, 64), np.float32)
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(64, np.float32)
    tensors["visual.{i}.proj"] = np.zeros(1, np.float32)
    assert sorted(problems_of(write_checkpoint(tmp_path / "m", tensors=tensors))) == [
        "model.layers.0.self_attn.q_proj.bias: unexpected; this architecture has no such tensor",
        "model.layers.1.self_attn.k_proj.weight: has shape [16, 64], expected [32, 64] "
        "by config.json",
        "model.layers.2.mlp.up_proj.weight: unexpected; this architecture has no such tensor",
        "model.layers.{i}.mlp.up_proj.weight (i = 0 to 1): missing; expected shape [128, 64]",
        "model.norm.weight: missing; expected shape [64]",
        "visual.{i}.proj: unexpected; this architecture has no such tensor",
    ]


def test_quantised_weights_are_named_with_their_dtype(tmp_path):
    from safetensors.numpy import save_file

    model = write_checkpoint(tmp_path / "m")
    tensors = hf_tensors(hf_config("llama"))
    packed = {**tensors, "lm_head.weight": np.zeros((250, 64), np.int8)}
    save_file(packed, model / "model.safetensors")
    assert problems_of(model) == [
        "lm_head.weight: has dtype int8, expected one of float16, bfloat16, float32, float64"
    ]


def test_a_shard_missing_from_the_directory_and_a_tensor_missing_from_a_shard(tmp_path):
    model = write_checkpoint(tmp_path / "m", shards=3)
    index_file = model / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    (model / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors is missing"):
        open_source(str(model))
    index["weight_map"] = dict.fromkeys(index["weight_map"], "model-00001-of-00003.safetensors")
    index_file.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"not in model-00001-of-00003\.safetensors, where"):
        open_source(str(model))


@pytest.mark.parametrize(
    "shard",
    ["../m2/model.safetensors", "/etc/passwd", "..", "", "sub/model.safetensors", "a\0b", 5, None],
)
def test_an_index_cannot_lead_out_of_the_directory(tmp_path, shard):
    write_checkpoint(tmp_path / "m2")
    model = write_checkpoint(tmp_path / "m", shards=2)
    index = {"weight_map": {"lm_head.weight": shard}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"plain file name|missing"):
        open_source(str(model))


def test_links_may_lead_to_the_hub_cache_of_the_snapshot_and_nowhere_else(tmp_path):
    elsewhere = write_checkpoint(tmp_path / "elsewhere") / "model.safetensors"
    model = write_checkpoint(tmp_path / "repo" / "snapshots" / "abc")
    file = model / "model.safetensors"
    blob = tmp_path / "repo" / "blobs" / "1234"
    blob.parent.mkdir()
    file.rename(blob)
    file.symlink_to(blob)
    assert len(open_source(str(model)).tensors) == 21
    file.unlink()
    file.symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="link that leads out"):
        open_source(str(model))
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(CheckpointError, match="missing"):
        open_source(str(model))


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path):
    model = write_checkpoint(tmp_path / "m")
    (model / "model.safetensors").unlink()
    os.mkfifo(model / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_source(str(model))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_config_that_is_no_json_object_is_refused(tmp_path, content):
    model = write_checkpoint(tmp_path / "m")
    (model / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_source(str(model))


def test_a_directory_without_config_or_weights_says_what_is_missing(tmp_path):
    model = write_checkpoint(tmp_path / "m")
    (model / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no safetensors file"):
        open_source(str(model))
    (model / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(CheckpointError, match=r"pickle.*save_pretrained"):
        open_source(str(model))
    (model / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: missing"):
        open_source(str(model))


CONFIGS = {
    "no architectures": ({"architectures": None}, "architectures is None"),
    "an unknown architecture": (
        {"architectures": ["LamaForCausalLM"]},
        "did you mean 'LlamaForCausalLM'",
    ),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    "negative layers": ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
    "very many layers": ({"num_hidden_layers": 10**6}, "at most 10000"),
    "a size beyond reason": ({"hidden_size": 10**30}, "hidden_size is 1000"),
    "a size in words": ({"vocab_size": "250"}, "vocab_size is '250'"),
    "a size that is true": ({"intermediate_size": True}, "intermediate_size is True"),
    "a size that is missing": ({"hidden_size": None}, "hidden_size is missing"),
    "heads that do not divide": (
        {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": None},
        "hidden_size 64 is not a multiple of num_attention_heads 5",
    ),
    "groups that do not divide": ({"num_key_value_heads": 3}, "is not a multiple of"),
    "an odd head": ({"head_dim": 15}, "head_dim 15 is odd"),
    "eps of zero": ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    "theta that is not a number": ({"rope_theta": float("nan")}, "rope_theta is nan"),
    "scaling in words": ({"rope_scaling": "llama3"}, "rope_scaling is 'llama3'"),
    "part of each head rotated": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    "weights quantised already": (
        {"quantization_config": {"quant_method": "awq"}},
        "quantised already",
    ),
}


@pytest.mark.parametrize(("changes", "said"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_with_absurd_values_is_refused(changes, said):
    config = hf_config("llama", **changes)
    with pytest.raises(CheckpointError) as caught:
        checkpoint_config(config, ModelSpec(checkpoint="m"))
    assert said in str(caught.value)


@pytest.mark.parametrize("window", ["4096", 0, True])
def test_a_sliding_window_that_is_no_length_is_refused(window):
    config = hf_config("mistral", sliding_window=window)
    with pytest.raises(CheckpointError, match=f"sliding_window is {window!r}, expected"):
        checkpoint_config(config, ModelSpec(checkpoint="m"))


def test_a_disk_that_is_too_small_is_seen_before_the_first_byte(tmp_path, monkeypatch):
    model = str(write_checkpoint(tmp_path / "m"))
    full = shutil._ntuple_diskusage(10**9, 10**9, 1000)
    monkeypatch.setattr("toolkit.checkpoint.write.shutil.disk_usage", lambda path: full)
    spec = ModelSpec(checkpoint=model)
    with pytest.raises(BuildError, match=r"GB free; free some or choose another disk"):
        convert(open_source(model), tmp_path / "out", spec)
    assert list((tmp_path / "out").iterdir()) == []


def test_all_absurd_values_are_reported_at_once():
    config = hf_config("llama", hidden_size=0, vocab_size=-5, rms_norm_eps="x")
    with pytest.raises(CheckpointError) as caught:
        checkpoint_config(config, ModelSpec(checkpoint="m", quantization="fp8"))
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        (Parallel(tp=3), "parallel.tp 3 does not divide num_attention_heads 4"),
        (Parallel(tp=3), "must divide num_key_value_heads 2 or be a multiple of it"),
        (Parallel(tp=64), "parallel.tp 64 does not divide num_attention_heads 4"),
        (Parallel(pp=3), "parallel.pp 3 is more than 2 layer(s)"),
    ],
)
def test_a_split_that_does_not_come_out_even_is_refused(parallel, said):
    with pytest.raises(CheckpointError) as caught:
        checkpoint_config(hf_config("llama"), ModelSpec(checkpoint="m", parallel=parallel))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("quantization", "said"),
    [("fp8", "ModelOpt"), ("awq", "ModelOpt"), ("gptq", "GPTQ"), ("w3a16", "not known")],
)
def test_quantization_that_conversion_cannot_do_says_what_it_needs(quantization, said):
    spec = ModelSpec(checkpoint="m", quantization=quantization)
    with pytest.raises(CheckpointError, match=said):
        checkpoint_config(hf_config("llama"), spec)


@pytest.mark.parametrize(
    "checkpoint",
    ["no/such/directory", "./absent", "absent.gguf", "name", "org/name/more", "a\0b", "x" * 5000],
)
def test_a_checkpoint_that_is_nothing_says_what_it_could_be(checkpoint):
    with pytest.raises(InputError, match="checkpoint '"):
        open_source(checkpoint)


def test_a_file_that_is_no_gguf_is_not_taken_for_a_checkpoint(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"neither a directory nor a \.gguf file"):
        open_source(str(tmp_path / "model.bin"))
