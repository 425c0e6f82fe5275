"""TensorRT-LLM checkpoints as they are: whole ones are copied, others refused with every reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.tiny import write_checkpoint, write_tokenizer
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.model_tokenizer import open_tokenizer_files, tokenizer_identity
from toolkit.checkpoint.read import Checkpoint
from toolkit.checkpoint.ready import copy_ready, open_ready
from toolkit.checkpoint.safetensors_file import DTYPES, header_bytes
from toolkit.checkpoint.source import kind_of, open_source, source_identity
from toolkit.errors import CheckpointError, InputError
from toolkit.recipe.schema import ModelSpec
from toolkit.store import Store

GOLDEN = Path(__file__).parents[1] / "golden"
TORCH = {f"torch.{dtype.name}": dtype for dtype in DTYPES.values()}
GOLDENS = ["llama_tp1", "llama_tp2", "llama_tp4", "llama_pp2", "llama_tied_tp2", "llama_pe0",
           "llama_bf16", "llama31", "qwen2", "gemma", "mistral", "w8_fp"]  # fmt: skip


def golden_checkpoint(directory: Path, name: str) -> ModelSpec:
    """The checkpoint of a golden file, all zeros, and the recipe's words for it."""
    golden = json.loads((GOLDEN / f"ckpt_{name}.json").read_text())
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(golden["config"]))
    for file, tensors in golden["ranks"].items():
        found = {n: (TORCH[dtype], tuple(shape)) for n, (shape, dtype) in tensors.items()}
        size = sum(int(np.prod(shape)) * dtype.itemsize for dtype, shape in found.values())
        (directory / file).write_bytes(header_bytes(found) + bytes(size))
    config = golden["config"]
    return ModelSpec(
        checkpoint=str(directory),
        dtype=config["dtype"],
        parallel={"tp": config["mapping"]["tp_size"], "pp": config["mapping"]["pp_size"]},
        quantization={"W8A16": "w8a16", None: None}[config["quantization"]["quant_algo"]],
    )


@pytest.mark.parametrize("name", GOLDENS)
def test_what_upstream_writes_is_taken_and_copied_byte_for_byte(tmp_path, name):
    spec = golden_checkpoint(tmp_path / "theirs", name)
    assert kind_of(spec.checkpoint) == "ready"
    (tmp_path / "out").mkdir()
    copy_ready(open_ready(spec), tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    for file in names:
        ours, theirs = tmp_path / "out" / file, tmp_path / "theirs" / file
        assert ours.read_bytes() == theirs.read_bytes()
        assert not ours.samefile(theirs)


@pytest.fixture
def model(tmp_path) -> Path:
    return write_checkpoint(tmp_path / "model")


def converted(model: Path, name: str = "ready", **given) -> ModelSpec:
    spec = ModelSpec(checkpoint=str(model), **{"dtype": "float32", **given})
    convert(open_source(str(model)), model.parent / name, spec)
    return spec.model_copy(update={"checkpoint": str(model.parent / name)})


def edit(spec: ModelSpec, **changes) -> None:
    """Change config.json; a key with a dot is in a section of it."""
    path = Path(spec.checkpoint) / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (config[section] if section else config)[name] = value
    path.write_text(json.dumps(config))


def edit_rank(spec: ModelSpec, change, rank: int = 0) -> None:
    path = Path(spec.checkpoint) / f"rank{rank}.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def refusal(spec: ModelSpec, **given) -> list[str]:
    with pytest.raises(CheckpointError) as raised:
        open_ready(spec, **given)
    return raised.value.problems


def test_every_disagreement_with_the_recipe_is_named_with_both_values(model):
    spec = converted(model, parallel={"tp": 2})
    wrong = spec.model_copy(
        update={"dtype": "bfloat16", "quantization": "awq", "layers": (0,),
                "parallel": spec.parallel.model_copy(update={"tp": 1, "pp": 2})}
    )  # fmt: skip
    assert refusal(wrong, heads="medusa") == [
        "config.json: dtype is float32, the recipe's is bfloat16; set dtype: float32",
        "config.json: mapping.tp_size is 2, the recipe's parallel.tp is 1; set parallel.tp: 2, "
        "or write the checkpoint again for 1",
        "config.json: mapping.pp_size is 1, the recipe's parallel.pp is 2; set parallel.pp: 1, "
        "or write the checkpoint again for 2",
        "config.json: quantization.quant_algo is null, the recipe's quantization is awq; set "
        "quantization: null",
        "layers: [0]; such a checkpoint is taken whole: remove it",
        "medusa heads are converted together with their target: name the original (Hugging Face) "
        "weights as target.checkpoint",
    ]


def quantize(tensors, dtype=np.int8, *, scales=True) -> None:
    """The matrices of a layer, as ModelOpt leaves them: packed, with scales beside."""
    for name in [n for n in tensors if n.endswith(("qkv.weight", "fc.weight"))]:
        shape = tensors[name].shape
        tensors[name] = np.zeros((shape[0], shape[1] // 2), dtype)
        if scales:
            stem = name.removesuffix("weight")
            tensors[f"{stem}weights_scaling_factor"] = np.zeros((shape[0], 1), np.float32)


@pytest.mark.parametrize(
    ("algorithm", "word"),
    [("W4A16_AWQ", "awq"), ("W4A8_AWQ", "awq"), ("NVFP4", "nvfp4"), ("FP8", "fp8"),
     ("W8A8_SQ_PER_CHANNEL", "smoothquant"), ("W4A16_GPTQ", "gptq"), ("W8A16", "w8a16"),
     ("W4A8_QSERVE_PER_GROUP", "w4a8_qserve_per_group")],
)  # fmt: skip
def test_quantised_checkpoints_are_taken_under_their_own_word_only(model, algorithm, word):
    spec = converted(model)
    edit_rank(spec, quantize)
    edit(spec, quantization__quant_algo=algorithm)
    assert refusal(spec) == [
        f"config.json: quantization.quant_algo is {algorithm}, the recipe's quantization is null; "
        f"set quantization: {word}"
    ]
    ready = open_ready(spec.model_copy(update={"quantization": word}))
    assert ready.quantized


def test_weight_only_over_floats_is_whole(model):
    spec = converted(model, quantization="w8a16")
    assert not open_ready(spec).quantized


def test_an_algorithm_without_quantised_matrices_and_the_reverse(model):
    spec = converted(model)
    edit(spec, quantization__quant_algo="FP8")
    assert refusal(spec.model_copy(update={"quantization": "fp8"})) == [
        "config.json: quantization.quant_algo is FP8, but every matrix is floating point: nothing "
        "is quantised here"
    ]
    edit(spec, quantization__quant_algo="NO_QUANT")
    edit_rank(spec, quantize)
    assert refusal(spec) == [
        "config.json: quantization.quant_algo is null, but there are quantised matrices; take the "
        "config.json that belongs to them"
    ]


def test_a_quantised_matrix_without_scales(model):
    spec = converted(model, quantization="w8a16")
    edit_rank(spec, lambda tensors: quantize(tensors, scales=False))
    assert refusal(spec) == [
        f"rank0.safetensors: transformer.layers.{i}.{name}.weight is int8 and has no scales"
        for i in (0, 1)
        for name in ("attention.qkv", "mlp.fc")
    ]


def test_missing_and_left_over_ranks(model):
    spec = converted(model, parallel={"tp": 2})
    directory = Path(spec.checkpoint)
    (directory / "rank1.safetensors").rename(directory / "rank2.safetensors")
    assert refusal(spec) == [
        "rank1.safetensors: missing; mapping.world_size is 2",
        "rank2.safetensors: left over; mapping.world_size is 2",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architecture": None}, "architecture is None, expected the name"),
        ({"dtype": "float8"}, "dtype is 'float8', expected float16, bfloat16, float32"),
        ({"vocab_size": -1}, "vocab_size is -1, expected a positive integer"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads is '2', expected a positive integer"),
        ({"mapping": []}, "mapping is [], expected an object"),
        ({"mapping__tp_size": 0}, "mapping.tp_size is 0, expected a positive integer"),
        ({"mapping__world_size": 3}, "mapping.world_size is 3, but tp_size 1 x pp_size 1 x"),
        ({"mapping__cp_size": 2}, "mapping.cp_size is 2; context parallelism is not built here"),
        ({"mapping__tp_size": 4096, "mapping__world_size": 4096}, "world_size is 4096, at most"),
        ({"quantization__quant_algo": 8}, "quantization.quant_algo is 8, expected a name or null"),
        ({"quantization__quant_algo": "MIXED_PRECISION"}, "quant_cfg.json: missing"),
        ({"num_hidden_layers": 3}, "has 2 layers, config.json says 3"),
        (
            {"intermediate_size": 120},
            "mlp.fc.weight: float32 [128, 64], expected float32 [120, 64]",
        ),
    ],
)
def test_a_config_that_cannot_be_is_refused(model, change, said):
    spec = converted(model)
    edit(spec, **change)
    assert said in "\n".join(refusal(spec))


def test_missing_tensors_and_other_shapes_are_named_by_rank(model):
    spec = converted(model, parallel={"tp": 2})

    def change(tensors):
        del tensors["transformer.ln_f.weight"]
        tensors["lm_head.weight"] = np.zeros((250, 64), np.float32)

    edit_rank(spec, change, rank=1)
    assert sorted(refusal(spec)) == [
        "rank1.safetensors: lm_head.weight: float32 [250, 64], expected float32 [125, 64] by "
        "config.json",
        "rank1.safetensors: transformer.ln_f.weight: missing",
    ]


def test_a_truncated_rank(model):
    spec = converted(model)
    path = Path(spec.checkpoint) / "rank0.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert refusal(spec)[0].startswith("rank0.safetensors: truncated")


def test_a_rank_that_is_a_link_out_of_the_directory(model):
    spec = converted(model)
    path = Path(spec.checkpoint) / "rank0.safetensors"
    path.rename(model.parent / "elsewhere")
    path.symlink_to(model.parent / "elsewhere")
    assert "leads out of this directory" in refusal(spec)[0]


def test_eighty_layers_of_the_same_are_not_eighty_lines(tmp_path):
    spec = converted(write_checkpoint(tmp_path / "model", num_hidden_layers=20))
    edit(spec, intermediate_size=120)
    problems = refusal(spec)
    assert len(problems) == 13
    assert problems[-1] == "and 48 more of the kind"  # 20 layers x 3 matrices - 12


def test_an_architecture_that_is_not_converted_here_is_copied_all_the_same(model):
    spec = converted(model)
    edit(spec, architecture="MixtralForCausalLM")
    assert open_ready(spec).config["architecture"] == "MixtralForCausalLM"


def test_an_lm_head_that_is_the_embedding_may_be_left_out(tmp_path):
    spec = converted(write_checkpoint(tmp_path / "model", tie_word_embeddings=True))
    edit_rank(spec, lambda tensors: tensors.pop("lm_head.weight"))
    open_ready(spec)
    held = Checkpoint(Path(spec.checkpoint))
    embedding = held.tensor("transformer.vocab_embedding.weight")
    assert np.array_equal(held.tensor("lm_head.weight"), embedding)


def test_quantised_matrices_are_not_read_back_as_values(model):
    spec = converted(model, quantization="w8a16")
    edit_rank(spec, quantize)
    with pytest.raises(CheckpointError, match="int8, quantised already; backend cpu reads float"):
        Checkpoint(Path(spec.checkpoint)).tensor("transformer.layers.0.mlp.fc.weight")


def test_its_tensors_are_not_hugging_faces(model):
    with pytest.raises(InputError, match="is a TensorRT-LLM checkpoint"):
        open_source(converted(model).checkpoint)


# identity: what is copied, nothing else


def test_identity_is_the_content_of_what_is_copied(model, tmp_path):
    spec, store = converted(model), Store(tmp_path / "store")
    first = source_identity(spec.checkpoint, store=store)
    assert first is not None
    assert set(first["ready"]) == {"config.json", "rank0.safetensors"}
    shutil.copytree(spec.checkpoint, tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("of no effect")
    assert source_identity(str(tmp_path / "copy"), store=store) == first
    edit(spec, some_key=1)
    assert source_identity(spec.checkpoint, store=store) != first


# the tokenizer: another place's, since these checkpoints have none


def test_without_a_tokenizer_the_recipe_must_name_one(model, tmp_path):
    spec = converted(model)
    with pytest.raises(InputError, match="has no tokenizer; add tokenizer: with the directory"):
        open_tokenizer_files(spec)
    write_tokenizer(Path(spec.checkpoint))  # beside the ranks it is found
    assert open_tokenizer_files(spec).name == spec.checkpoint


def test_a_tokenizer_of_another_place_is_written_and_identified(model, tmp_path):
    store = Store(tmp_path / "store")
    alone = tmp_path / "alone"
    alone.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / file, alone)
    spec = converted(model).model_copy(update={"tokenizer": str(alone)})
    open_tokenizer_files(spec).tokenizer_files(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    first = tokenizer_identity(spec, store)
    assert set(first["files"]) == {"tokenizer.json", "tokenizer_config.json"}
    (alone / "tokenizer_config.json").write_text("{}")
    assert tokenizer_identity(spec, store) != first


@pytest.mark.parametrize("place", ["./nowhere", "pip:name==1.0"])
def test_a_tokenizer_that_is_no_directory_and_no_hub_id(model, place):
    spec = ModelSpec(checkpoint=str(model), tokenizer=place)
    with pytest.raises(InputError, match="tokenizer"):
        open_tokenizer_files(spec)
