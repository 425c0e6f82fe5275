"""ModelOpt's float8 checkpoints: matrices and scales arrive, and multiply to the same values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.tiny import hf_config, hf_tensors, write_checkpoint
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.safetensors_file import header_bytes, read_header, read_rows
from toolkit.checkpoint.source import open_source, source_identity
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import ModelSpec, Parallel
from toolkit.store import Store

FLOAT8 = ml_dtypes.float8_e4m3fn
QKV = ("q_proj", "k_proj", "v_proj")
LAYER = "model.layers.0.self_attn."


def is_matrix(name: str) -> bool:
    return ".layers." in name and name.endswith("_proj.weight")


def quantised(*, alike: bool = True, kv: bool = True) -> dict[str, Any]:
    """A tiny Llama as ModelOpt exports it; `alike`: q, k and v have one scale."""
    tensors: dict[str, Any] = {}
    plain = hf_tensors(hf_config("llama"))
    for name, value in plain.items():
        if not is_matrix(name):
            tensors[name] = value.astype(np.float16)
            continue
        together = [name]
        if alike and any(part in name for part in QKV):
            stem = name[: name.index("self_attn.") + len("self_attn.")]
            together = [f"{stem}{part}.weight" for part in QKV]
        largest = max(float(np.abs(plain[other]).max()) for other in together)
        scale = np.float32(largest / 448.0)
        tensors[name] = (value / scale).astype(FLOAT8)
        tensors[name + "_scale"] = np.asarray(scale, np.float32)
        tensors[name.replace("weight", "input_scale")] = np.asarray(0.5 + len(name) / 100, "f4")
    for i in range(2 if kv else 0):
        tensors[f"model.layers.{i}.self_attn.k_proj.k_scale"] = np.asarray(0.25, np.float32)
        tensors[f"model.layers.{i}.self_attn.v_proj.v_scale"] = np.asarray([0.75], np.float32)
    return tensors


def write(directory: Path, tensors: dict[str, Any], **quantization: Any) -> str:
    write_checkpoint(directory)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(header_bytes({name: (t.dtype, t.shape) for name, t in tensors.items()}))
        for value in tensors.values():
            file.write(np.ascontiguousarray(value).tobytes())
    section = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    config = {
        "producer": {"name": "modelopt", "version": "0.23.0"},
        "quantization": section | quantization,
    }
    (directory / "hf_quant_config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(directory)


def spec(checkpoint: str, quantization: str | None = "fp8", tp: int = 1) -> ModelSpec:
    return ModelSpec(
        checkpoint=checkpoint,
        dtype="float16",
        quantization=quantization,
        parallel=Parallel(tp=tp),
    )


def converted(tmp_path, tensors, *, tp=1, **quantization):
    """(config.json, the tensors of every rank)"""
    checkpoint = write(tmp_path / "model", tensors, **quantization)
    convert(open_source(checkpoint), tmp_path / "out", spec(checkpoint, tp=tp))
    ranks = []
    for rank in range(tp):
        path = tmp_path / "out" / f"rank{rank}.safetensors"
        ranks.append({n: read_rows(path, span) for n, span in read_header(path).items()})
    return json.loads((tmp_path / "out" / "config.json").read_text()), ranks


def problems(checkpoint, quantization="fp8"):
    with pytest.raises(CheckpointError) as caught:
        convert(
            open_source(checkpoint), Path(checkpoint).parent / "out", spec(checkpoint, quantization)
        )
    return caught.value.problems


def test_config_json_says_what_modelopt_did(tmp_path):
    config, _ = converted(tmp_path, quantised())
    assert config["quantization"] == {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    }


def test_matrices_and_scales_arrive_as_they_are(tmp_path):
    given = quantised()
    _, (rank,) = converted(tmp_path, given)
    down = "model.layers.1.mlp.down_proj."
    proj = "transformer.layers.1.mlp.proj."
    assert rank[proj + "weight"].dtype == FLOAT8
    assert (rank[proj + "weight"] == given[down + "weight"]).all()
    assert rank[proj + "weights_scaling_factor"].tolist() == [given[down + "weight_scale"]]
    assert rank[proj + "activation_scaling_factor"].tolist() == [given[down + "input_scale"]]
    assert rank[proj + "weights_scaling_factor"].dtype == np.float32
    assert rank["lm_head.weight"].dtype == np.float16
    assert "lm_head.weights_scaling_factor" not in rank


def test_q_k_and_v_share_one_scale_and_the_largest_input_scale(tmp_path):
    given = quantised()
    _, (rank,) = converted(tmp_path, given)
    name = "transformer.layers.0.attention.qkv."
    expected = np.concatenate([given[f"{LAYER}{part}.weight"] for part in QKV])
    assert (rank[name + "weight"] == expected).all()
    assert rank[name + "weights_scaling_factor"] == given[f"{LAYER}q_proj.weight_scale"]
    inputs = [float(given[f"{LAYER}{part}.input_scale"]) for part in QKV]
    assert rank[name + "activation_scaling_factor"] == np.float32(max(inputs))


def test_parts_of_other_scales_are_scaled_over(tmp_path):
    given = quantised(alike=False)
    _, (rank,) = converted(tmp_path, given)
    name = "transformer.layers.0.attention.qkv."
    scales = [float(given[f"{LAYER}{part}.weight_scale"]) for part in QKV]
    assert len(set(scales)) == 3
    made = rank[name + "weight"].astype(np.float64) * float(
        rank[name + "weights_scaling_factor"][0]
    )
    wanted = np.concatenate(
        [
            given[f"{LAYER}{part}.weight"].astype(np.float64) * scale
            for part, scale in zip(QKV, scales, strict=True)
        ]
    )
    # float8 has 3 bits after the point: half a step is 1/16 of the value; tiny values lose more.
    assert np.allclose(made, wanted, rtol=1 / 16, atol=max(scales) * 2**-9)
    largest = QKV[int(np.argmax(scales))]
    rows = {"q_proj": slice(0, 64), "k_proj": slice(64, 96), "v_proj": slice(96, 128)}[largest]
    assert (rank[name + "weight"][rows] == given[f"{LAYER}{largest}.weight"]).all()


def test_the_kv_caches_scale_is_the_larger_of_k_and_v(tmp_path):
    _, (rank,) = converted(tmp_path, quantised())
    found = rank["transformer.layers.1.attention.kv_cache_scaling_factor"]
    assert found.tolist() == [0.75]
    assert found.dtype == np.float32


def test_a_plain_kv_cache_has_no_scale(tmp_path):
    config, (rank,) = converted(tmp_path, quantised(kv=False), kv_cache_quant_algo=None)
    assert config["quantization"]["kv_cache_quant_algo"] is None
    assert not any("kv_cache" in name for name in rank)


def test_ranks_share_matrices_and_have_all_scales(tmp_path):
    given = quantised()
    _, ranks = converted(tmp_path, given, tp=2)
    name = "transformer.layers.0.mlp.fc."
    joined = np.concatenate([rank[name + "weight"] for rank in ranks])
    assert (joined == given["model.layers.0.mlp.gate_proj.weight"]).all()
    scales = {float(rank[name + "weights_scaling_factor"][0]) for rank in ranks}
    assert scales == {float(given["model.layers.0.mlp.gate_proj.weight_scale"])}


@pytest.mark.parametrize(
    "name",
    [
        LAYER + "q_proj.weight_scale",
        "model.layers.1.mlp.up_proj.input_scale",
        LAYER + "k_proj.k_scale",
    ],
)
def test_a_missing_scale_is_named(tmp_path, name):
    tensors = quantised()
    del tensors[name]
    (found,) = problems(write(tmp_path / "model", tensors))
    assert found.startswith(f"{name}: missing; hf_quant_config.json says that ")


def test_a_scale_for_each_row_is_refused(tmp_path):
    tensors = quantised()
    tensors["model.layers.0.mlp.up_proj.weight_scale"] = np.ones(128, np.float32)
    (found,) = problems(write(tmp_path / "model", tensors))
    assert "has shape [128], expected one value" in found


def test_a_layer_that_was_left_out_is_named(tmp_path):
    tensors = quantised()
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name].astype(np.float16)
    (found,) = problems(write(tmp_path / "model", tensors))
    assert found.startswith(f"{name}: has dtype float16, expected float8_e4m3fn")


@pytest.mark.parametrize(("said", "shown"), [(None, "null"), ("w8a16", "w8a16")])
def test_a_recipe_that_does_not_say_fp8(tmp_path, said, shown):
    (found,) = problems(write(tmp_path / "model", quantised()), said)
    assert found == (
        f"hf_quant_config.json: the weights are FP8, the recipe's quantization is {shown}; set "
        "quantization: fp8"
    )


def test_fp8_of_plain_weights_says_how_to_make_them(tmp_path):
    checkpoint = str(write_checkpoint(tmp_path / "model"))
    (found,) = problems(checkpoint)
    assert f"hf_ptq.py --pyt_ckpt_path {checkpoint} --qformat fp8 --export_path DIR" in found


@pytest.mark.parametrize(("said", "qformat"), [("awq", "int4_awq"), ("nvfp4", "nvfp4")])
def test_what_only_modelopt_writes_comes_with_its_command(tmp_path, said, qformat):
    checkpoint = str(write_checkpoint(tmp_path / "model"))
    (found,) = problems(checkpoint, said)
    assert f"quantize.py --model_dir {checkpoint} --dtype float16 --qformat {qformat}" in found


def test_weights_in_another_format_are_refused_by_name(tmp_path):
    checkpoint = write(tmp_path / "model", quantised(), quant_algo="NVFP4")
    (found,) = [p for p in problems(checkpoint) if p.startswith("hf_quant")]
    assert "the weights are NVFP4, the recipe's quantization is fp8" in found


def test_hf_quant_config_belongs_to_the_identity(tmp_path):
    checkpoint, store = write(tmp_path / "model", quantised()), Store(tmp_path / "store")
    first = source_identity(checkpoint, store=store)
    write(tmp_path / "model", quantised(), kv_cache_quant_algo=None)
    assert source_identity(checkpoint, store=store) != first


def test_a_plan_says_what_modelopt_must_do_first(tmp_path):
    from tests.recipes_for_tests import write_recipe
    from toolkit.plan import make_plan
    from toolkit.recipe.load import load_recipe

    path = write_recipe(tmp_path)
    recipe = load_recipe(str(path), ["target.quantization=nvfp4"])
    notes = [
        note for a in make_plan(recipe, Store(tmp_path / "store")).artefacts for note in a.notes
    ]
    assert len(notes) == 1
    assert "--qformat nvfp4" in notes[0]
