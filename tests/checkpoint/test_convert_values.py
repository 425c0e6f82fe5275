"""Values: ranks joined again equal the source, rounding is the usual one, layers can be chosen."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from tests.tiny import hf_config, hf_tensors, write_checkpoint
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.families.llama import DECODER
from toolkit.checkpoint.read import Checkpoint
from toolkit.checkpoint.safetensors_file import read_header, read_rows
from toolkit.checkpoint.source import open_source
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import ModelSpec, Parallel


def converted(tmp_path, family="llama", *, spec=None, out="out", **changes):
    model = write_checkpoint(tmp_path / f"model-{out}", family, **changes)
    given = {"checkpoint": str(model), "dtype": "float32", **(spec or {})}
    convert(open_source(str(model)), tmp_path / out, ModelSpec(**given))
    return tmp_path / out


def expected(family, tensors, config):
    """Whole tensors by TensorRT-LLM name, written out by hand from the Hugging Face ones."""
    added = 1.0 if family == "gemma" else 0.0
    whole = {
        "transformer.vocab_embedding.weight": tensors["model.embed_tokens.weight"],
        "transformer.ln_f.weight": tensors["model.norm.weight"] + np.float32(added),
        "lm_head.weight": tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]),
    }
    for i in range(config["num_hidden_layers"]):
        hf, trt = f"model.layers.{i}.", f"transformer.layers.{i}."
        attention = hf + "self_attn."
        whole |= {
            trt + "input_layernorm.weight": tensors[hf + "input_layernorm.weight"]
            + np.float32(added),
            trt + "post_layernorm.weight": tensors[hf + "post_attention_layernorm.weight"]
            + np.float32(added),
            trt + "attention.qkv.weight": np.concatenate(
                [tensors[f"{attention}{p}_proj.weight"] for p in "qkv"]
            ),
            trt + "attention.dense.weight": tensors[attention + "o_proj.weight"],
            trt + "mlp.fc.weight": tensors[hf + "mlp.gate_proj.weight"],
            trt + "mlp.gate.weight": tensors[hf + "mlp.up_proj.weight"],
            trt + "mlp.proj.weight": tensors[hf + "mlp.down_proj.weight"],
        }
        if family == "qwen2":
            whole[trt + "attention.qkv.bias"] = np.concatenate(
                [tensors[f"{attention}{p}_proj.bias"] for p in "qkv"]
            )
        if family == "qwen3":
            for p in "qk":
                whole[f"{trt}attention.{p}_layernorm.weight"] = tensors[
                    f"{attention}{p}_norm.weight"
                ]
    return whole


@pytest.mark.parametrize("parallel", [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma"])
def test_joined_ranks_equal_the_source(tmp_path, family, parallel):
    tp, pp = parallel
    out = converted(tmp_path, family, spec={"parallel": Parallel(tp=tp, pp=pp)})
    config = hf_config(family)
    whole = expected(family, hf_tensors(config), config)
    checkpoint = Checkpoint(out)
    assert set(checkpoint.names()) == set(whole)
    for name, value in whole.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), value, err_msg=name)


def test_biases_of_every_projection_are_kept(tmp_path):
    biased = {"attention_bias": True, "mlp_bias": True}
    out = converted(tmp_path, spec={"parallel": Parallel(tp=2)}, **biased)
    tensors, checkpoint = hf_tensors(hf_config("llama", **biased)), Checkpoint(out)
    for trt, hf in {
        "attention.dense.bias": "self_attn.o_proj.bias",
        "mlp.fc.bias": "mlp.gate_proj.bias",
        "mlp.gate.bias": "mlp.up_proj.bias",
        "mlp.proj.bias": "mlp.down_proj.bias",
    }.items():
        found = checkpoint.tensor(f"transformer.layers.1.{trt}")
        np.testing.assert_array_equal(found, tensors[f"model.layers.1.{hf}"])


def test_a_kv_head_goes_to_all_ranks_that_share_it(tmp_path):
    # 2 KV heads of 16 rows on 4 ranks: ranks 0 and 1 hold head 0, ranks 2 and 3 head 1.
    out = converted(tmp_path, spec={"parallel": Parallel(tp=4)})
    k = hf_tensors(hf_config("llama"))["model.layers.0.self_attn.k_proj.weight"]
    for rank, head in enumerate([0, 0, 1, 1]):
        file = out / f"rank{rank}.safetensors"
        qkv = read_rows(file, read_header(file)["transformer.layers.0.attention.qkv.weight"])
        np.testing.assert_array_equal(qkv[16:32], k[head * 16 : head * 16 + 16])


def test_the_padded_row_of_lm_head_is_zero(tmp_path):
    # 250 rows on 4 ranks: 63 each, so the last rank has 61 and two rows of zeros.
    out = converted(tmp_path, spec={"parallel": Parallel(tp=4)})
    file = out / "rank3.safetensors"
    head = read_rows(file, read_header(file)["lm_head.weight"])
    whole = hf_tensors(hf_config("llama"))["lm_head.weight"]
    np.testing.assert_array_equal(head[:61], whole[189:])
    assert not head[61:].any()


def test_a_parallel_embedding_is_padded_like_lm_head(tmp_path):
    out = converted(tmp_path, "gemma", spec={"parallel": Parallel(tp=4)})
    assert json.loads((out / "config.json").read_text())["use_parallel_embedding"] is True
    shape = read_header(out / "rank0.safetensors")["transformer.vocab_embedding.weight"].shape
    assert shape == (63, 64)


def test_uneven_pipeline_stages_keep_every_layer(tmp_path):
    # 5 layers on 2 stages: 3 and 2, where the oldest release would drop the fifth.
    out = converted(tmp_path, spec={"parallel": Parallel(pp=2)}, num_hidden_layers=5)
    names = [
        {
            name.split(".")[2]
            for name in read_header(out / f"rank{r}.safetensors")
            if "layers" in name
        }
        for r in (0, 1)
    ]
    assert names == [{"0", "1", "2"}, {"0", "1"}]
    last = hf_tensors(hf_config("llama", num_hidden_layers=5))[
        "model.layers.4.mlp.down_proj.weight"
    ]
    found = Checkpoint(out).tensor("transformer.layers.4.mlp.proj.weight")
    np.testing.assert_array_equal(found, last)


def test_chosen_layers_are_renumbered(tmp_path):
    out = converted(tmp_path, spec={"layers": (0, 3)}, num_hidden_layers=4)
    checkpoint = Checkpoint(out)
    assert checkpoint.config["num_hidden_layers"] == 2
    tensors = hf_tensors(hf_config("llama", num_hidden_layers=4))
    np.testing.assert_array_equal(
        checkpoint.tensor("transformer.layers.1.mlp.fc.weight"),
        tensors["model.layers.3.mlp.gate_proj.weight"],
    )


@pytest.mark.parametrize("layers", [(0, 2), ()])
def test_layers_that_the_model_lacks_are_refused(tmp_path, layers):
    with pytest.raises(CheckpointError, match="layers: "):
        converted(tmp_path, spec={"layers": layers})
    assert not (tmp_path / "out").exists()


def test_the_same_dtype_travels_as_the_same_bytes(tmp_path):
    # NaN payloads and denormals would not survive arithmetic.
    bits = np.arange(250 * 64, dtype=np.uint16).reshape(250, 64)
    tensors = hf_tensors(hf_config("llama"))
    stored = {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors.items()}
    stored["lm_head.weight"] = bits.view(ml_dtypes.bfloat16)
    out = converted(tmp_path, spec={"dtype": "bfloat16"}, dtype="bfloat16", tensors=stored)
    found = Checkpoint(out).tensor("lm_head.weight")
    np.testing.assert_array_equal(found.view(np.uint16), bits)


def test_bfloat16_rounds_as_torch_does(tmp_path):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values = rng.standard_normal((250, 64)).astype(np.float32) * 10.0 ** rng.integers(
        -38, 38, (250, 64)
    )
    values = values.astype(np.float32)
    # exactly half way between two bfloat16 values, both parities
    values[0, :2] = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    tensors = hf_tensors(hf_config("llama")) | {"lm_head.weight": values}
    out = converted(tmp_path, spec={"dtype": "bfloat16"}, tensors=tensors)
    ours = Checkpoint(out).tensor("lm_head.weight").view(np.int16)
    theirs = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    np.testing.assert_array_equal(ours, theirs)


def test_values_beyond_float16_are_refused_not_turned_to_infinity(tmp_path):
    tensors = hf_tensors(hf_config("llama"))
    tensors["lm_head.weight"][3, 5] = 1e5
    with pytest.raises(CheckpointError, match=r"lm_head\.weight.*\n.*beyond the range of float16"):
        converted(tmp_path, spec={"dtype": "float16"}, tensors=tensors)


def test_shards_and_one_file_convert_to_the_same_bytes(tmp_path):
    one = converted(tmp_path, out="one", spec={"parallel": Parallel(tp=2)})
    three = converted(tmp_path, out="three", spec={"parallel": Parallel(tp=2)}, shards=3)
    for name in ("config.json", "rank0.safetensors", "rank1.safetensors"):
        assert (one / name).read_bytes() == (three / name).read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_are_small_whatever_the_tensor(tmp_path, monkeypatch, dtype):
    spec = {"parallel": Parallel(tp=2), "dtype": dtype}
    whole = converted(tmp_path, out="whole", spec=spec)
    monkeypatch.setattr("toolkit.checkpoint.write.BLOCK", 1000)  # three rows of 64 float32 values
    blocks = converted(tmp_path, out="blocks", spec=spec)
    for name in ("rank0.safetensors", "rank1.safetensors"):
        assert (whole / name).read_bytes() == (blocks / name).read_bytes()


def test_a_tied_head_that_is_stored_anyway_is_ignored(tmp_path):
    tensors = hf_tensors(hf_config("llama"))
    out = converted(tmp_path, tie_word_embeddings=True, tensors=tensors)
    found = Checkpoint(out).tensor("lm_head.weight")
    np.testing.assert_array_equal(found, tensors["model.embed_tokens.weight"])


def test_rotary_constants_of_old_files_are_dropped(tmp_path):
    tensors = hf_tensors(hf_config("llama"))
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    assert "model.layers.{i}.self_attn.rotary_emb.inv_freq" in DECODER
    out = converted(tmp_path, tensors=tensors)
    assert not [name for name in read_header(out / "rank0.safetensors") if "rotary" in name]
