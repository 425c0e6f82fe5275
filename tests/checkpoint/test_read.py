"""Reading TensorRT-LLM checkpoints that other converters wrote, or that are damaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.tiny import hf_config, hf_tensors, write_checkpoint
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.read import Checkpoint
from toolkit.checkpoint.source import open_source
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import ModelSpec, Parallel

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def checkpoint(tmp_path):
    """A Llama on two ranks."""
    model = str(write_checkpoint(tmp_path / "model"))
    spec = ModelSpec(checkpoint=model, dtype="float32", parallel=Parallel(tp=2))
    convert(open_source(model), tmp_path / "out", spec)
    return tmp_path / "out"


def edit_config(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("dim", [0, 1])
def test_an_embedding_split_over_ranks_is_joined(checkpoint, dim):
    whole = hf_tensors(hf_config("llama"))["model.embed_tokens.weight"]
    for rank, part in enumerate(np.split(whole, 2, axis=dim)):
        file = checkpoint / f"rank{rank}.safetensors"
        tensors = load_file(file)
        tensors["transformer.vocab_embedding.weight"] = np.ascontiguousarray(part)
        save_file(tensors, file)
    edit_config(checkpoint, use_parallel_embedding=True, embedding_sharding_dim=dim)
    found = Checkpoint(checkpoint).tensor("transformer.vocab_embedding.weight")
    np.testing.assert_array_equal(found, whole)


def test_upstreams_extra_constants_and_missing_options_are_no_obstacle(checkpoint):
    # What the smallest accepted config.json leaves out, and the constants upstream stores.
    config = json.loads((checkpoint / "config.json").read_text())
    small = json.loads((GOLDEN / "ckpt_mincfg.json").read_text())["config"]
    kept = {key: config[key] for key in small}
    (checkpoint / "config.json").write_text(json.dumps(kept))
    for rank in (0, 1):
        file = checkpoint / f"rank{rank}.safetensors"
        save_file(load_file(file) | {"rotary_inv_freq": np.ones(8, np.float32)}, file)
    whole = hf_tensors(hf_config("llama"))["lm_head.weight"]
    np.testing.assert_array_equal(Checkpoint(checkpoint).tensor("lm_head.weight"), whole)


def problem_of(directory, name="lm_head.weight"):
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(directory).tensor(name)
    return str(caught.value)


def test_a_missing_rank_is_named(checkpoint):
    (checkpoint / "rank1.safetensors").unlink()
    assert "rank1.safetensors: missing" in problem_of(checkpoint)


def test_a_missing_config_is_named(checkpoint):
    (checkpoint / "config.json").unlink()
    assert "config.json: missing" in problem_of(checkpoint)


@pytest.mark.parametrize("content", ["", "[]", "{}", '"x"'])
def test_a_damaged_config_is_refused(checkpoint, content):
    (checkpoint / "config.json").write_text(content)
    assert "config.json" in problem_of(checkpoint)


def test_a_tensor_of_another_shape_than_the_config_says_is_refused(checkpoint):
    edit_config(checkpoint, vocab_size=252)
    assert "lm_head.weight: float32 [125, 64], expected float32 [126, 64]" in problem_of(checkpoint)


def test_a_tensor_of_another_dtype_than_the_config_says_is_refused(checkpoint):
    edit_config(checkpoint, dtype="float16")
    assert "float32 [125, 64], expected float16" in problem_of(checkpoint)


def test_a_layer_too_few_is_refused(checkpoint):
    edit_config(checkpoint, num_hidden_layers=3)
    assert "has 2 layers, config.json says 3" in problem_of(checkpoint)


def test_a_name_that_the_architecture_lacks_is_refused(checkpoint):
    assert "not in this architecture" in problem_of(checkpoint, "transformer.position_embedding")
