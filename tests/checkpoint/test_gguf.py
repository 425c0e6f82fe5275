"""GGUF files: the same tensors as in the safetensors they came from; damage is one clear error."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiny import write_checkpoint
from tests.tiny_gguf import gguf_name, write_gguf
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.gguf_source import GgufSource
from toolkit.checkpoint.source import open_source
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import ModelSpec, Parallel


def test_tensors_come_back_under_their_own_names_and_in_their_own_row_order(tmp_path):
    tensors = write_gguf(tmp_path / "m.gguf")
    source = open_source(str(tmp_path / "m.gguf"))
    assert set(source.tensors) == set(tensors)
    for name, value in tensors.items():
        assert source.tensors[name].shape == value.shape
        np.testing.assert_array_equal(source.read(name), value, err_msg=name)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(3, 21), slice(16, 32), slice(31, 32)])
@pytest.mark.parametrize("name", ["self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj"])
def test_any_rows_and_columns_can_be_read_alone(tmp_path, name, rows):
    name = f"model.layers.1.{name}.weight"
    tensors = write_gguf(tmp_path / "m.gguf")
    found = open_source(str(tmp_path / "m.gguf")).read(name, rows, slice(5, 9))
    np.testing.assert_array_equal(found, tensors[name][rows, 5:9])


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32}),
    ],
)
def test_a_gguf_converts_to_the_same_bytes_as_its_safetensors(tmp_path, family, changes):
    write_gguf(tmp_path / "m.gguf", family, **changes)
    write_checkpoint(tmp_path / "hf", family, **changes)
    for name in ("m.gguf", "hf"):
        model = str(tmp_path / name)
        spec = ModelSpec(checkpoint=model, dtype="bfloat16", parallel=Parallel(tp=2))
        convert(open_source(model), tmp_path / f"{name}.out", spec)
    for file in ("config.json", "rank0.safetensors", "rank1.safetensors"):
        theirs = (tmp_path / "hf.out" / file).read_bytes()
        assert (tmp_path / "m.gguf.out" / file).read_bytes() == theirs


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
def test_quantised_tensors_are_dequantised_as_the_gguf_package_does(tmp_path, kind):
    import gguf

    kinds = gguf.GGMLQuantizationType
    name = "model.layers.0.self_attn.q_proj.weight"
    stored = {gguf_name(name): kinds[kind], "token_embd.weight": kinds[kind]}
    tensors = write_gguf(tmp_path / "m.gguf", quantized=stored)
    source = open_source(str(tmp_path / "m.gguf"))
    for hf_name in (name, "model.embed_tokens.weight"):
        packed = gguf.quants.quantize(tensors[hf_name], kinds[kind])
        expected = gguf.quants.dequantize(packed, kinds[kind])
        # rows are quantised one by one, so their order does not change their values
        np.testing.assert_array_equal(source.read(hf_name).astype(np.float32), expected)


def test_llama3_frequencies_become_rope_scaling(tmp_path):
    # theta 500000, head 16: waves 2 pi theta^(i/8); below 2048 positions nothing changes, above
    # 8192 the whole factor applies, between them the inverse is interpolated.
    waves = 2 * np.pi * 500000 ** (np.arange(8) / 8)
    smooth = (8192 / waves - 1) / 3
    factors = np.where(waves < 2048, 1.0, 8.0)
    between = (waves >= 2048) & (waves <= 8192)
    factors[between] = 1 / ((1 - smooth[between]) / 8 + smooth[between])
    table = {"rope_freqs.weight": factors.astype(np.float32)}
    write_gguf(tmp_path / "m.gguf", rope_theta=500000.0, extra=table)
    assert open_source(str(tmp_path / "m.gguf")).config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_other_frequencies_are_refused_rather_than_dropped(tmp_path):
    table = {"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)}
    write_gguf(tmp_path / "m.gguf", rope_theta=500000.0, extra=table)
    with pytest.raises(CheckpointError, match="not Llama 3's frequency table"):
        open_source(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "'yarn' with factor None: not supported"),
        ({"llama.rope.scaling.type": "linear"}, "not supported"),
    ],
)
def test_positions_that_cannot_be_kept_are_refused(tmp_path, metadata, said):
    write_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(CheckpointError, match=said):
        open_source(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"llama.rope.dimension_count": 8}, r"rope\.dimension_count is 8; only heads of 16"),
        ({"llama.attention.value_length": 8}, r"value_length is 8; only heads of 16"),
    ],
)
def test_heads_that_are_not_alike_all_through_are_refused(tmp_path, metadata, said):
    write_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(CheckpointError, match=said):
        open_source(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize("key", [b"llama.attention.head_count", b"llama.attention.head_count_kv"])
def test_a_gguf_without_heads_is_refused(tmp_path, key):
    write_gguf(tmp_path / "m.gguf")
    content = (tmp_path / "m.gguf").read_bytes()
    at = content.index(key + struct.pack("<I", 4)) + len(key) + 4
    (tmp_path / "m.gguf").write_bytes(content[:at] + bytes(4) + content[at + 4 :])
    with pytest.raises(CheckpointError, match=r"head_count.* is 0, expected a positive integer"):
        open_source(str(tmp_path / "m.gguf"))


def test_an_unknown_architecture_is_named(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"'mamba' is not supported \(llama, "):
        open_source(str(tmp_path / "m.gguf"))


def test_unknown_tensors_are_all_named(tmp_path):
    extra = {
        "blk.0.ffn_gate_exps.weight": np.zeros((2, 4), np.float32),
        "v.proj": np.zeros(4, np.float32),
    }
    write_gguf(tmp_path / "m.gguf", extra=extra)
    with pytest.raises(CheckpointError) as caught:
        open_source(str(tmp_path / "m.gguf"))
    assert len(caught.value.problems) == 2


def test_a_file_cut_anywhere_is_refused(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [0, 3, 4, 8, 23, 24, 100, 1000, 3000, len(whole) // 2, len(whole) - 40]:
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="GGUF"):
            open_source(str(cut))


LIES = {
    "pairs": struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60),
    "tensors": struct.pack("<4sIQQ", b"GGUF", 3, 2**60, 0),
    "a key's length": struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 2**63),
    "an array's length": struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 4, 2**62),
    "arrays within arrays": struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 9)
    + struct.pack("<IQ", 9, 1) * 500,
    "another byte order": struct.pack(">4sIQQ", b"GGUF", 3, 0, 0),
    "another magic": b"GGML" + bytes(100),
}


@pytest.mark.parametrize("content", LIES.values(), ids=LIES)
def test_lengths_are_not_believed(tmp_path, content):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a readable GGUF"):
        open_source(str(tmp_path / "m.gguf"))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)
@given(st.data())
def test_no_damage_gets_past_as_anything_but_a_checkpoint_error(tmp_path, data):
    path = tmp_path / "m.gguf"
    if not path.exists():
        write_gguf(path, num_hidden_layers=1, vocab_size=32)
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        # the header is the first few kilobytes; damage further on only changes numbers
        damaged[data.draw(st.integers(0, 1500))] = data.draw(st.integers(0, 255))
    (tmp_path / "damaged.gguf").write_bytes(damaged)
    spec = ModelSpec(checkpoint="damaged", dtype="float32")
    try:
        convert(GgufSource(tmp_path / "damaged.gguf"), tmp_path / "out", spec)
    except CheckpointError:
        return


@pytest.mark.model
def test_smollm2_equals_what_transformers_reads(smollm2_gguf, recwarn):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32
    )
    source = open_source(str(smollm2_gguf))
    theirs = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    assert set(source.tensors) == set(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(source.read(name), value.numpy(), err_msg=name)
    config = model.config.to_dict()
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                "num_key_value_heads", "intermediate_size", "max_position_embeddings",
                "tie_word_embeddings"):  # fmt: skip
        assert source.config[key] == config[key], key
    assert source.config["rms_norm_eps"] == pytest.approx(config["rms_norm_eps"], rel=1e-6)
    assert json.loads(json.dumps(source.config)) == source.config
