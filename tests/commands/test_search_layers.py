"""A target with two layers that do nothing: they leave first, and nothing is lost."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.engine_fixtures import tiny_recipe, write_tiny_model
from toolkit.recipe.load import dump_recipe


@pytest.fixture
def recipe(tmp_path):
    write_tiny_model(tmp_path / "target", num_hidden_layers=5)
    [file] = (tmp_path / "target").glob("*.safetensors")
    tensors = load_file(file)
    for layer in (1, 3):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            key = f"model.layers.{layer}.{name}.weight"
            tensors[key] = np.zeros_like(tensors[key])
    save_file(tensors, file)
    prompts = tmp_path / "said.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"word {i}"}) + "\n" for i in range(2)))
    made = tiny_recipe(tmp_path, drafter="ngram")
    tune = made.tune.model_copy(update={"prompts": {"said": str(prompts)}})
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_recipe(made.model_copy(update={"tune": tune})))
    return path


def test_idle_layers_leave_first_and_the_rest_drafts_perfectly(recipe, spectool):
    ran = spectool(
        "search-layers", recipe, "--k", "1..3", "--max-tokens", "20", "--threads", "1", "--json"
    )
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    by_size = {len(subset["layers"]): subset for subset in found["subsets"]}
    assert by_size[3]["layers"] == [0, 2, 4]
    assert by_size[3]["acceptance_length"] > 3.3  # of 4, less where a text ends
    assert by_size[3]["acceptance_length"] > by_size[2]["acceptance_length"]
    assert set(by_size) == {1, 2, 3, 4}


def test_only_the_embedded_engine_reads_layers(recipe, spectool):
    ran = spectool("search-layers", recipe, "--set", "backend=pytorch")
    assert ran.code == 2
    assert "--set backend=cpu" in ran.err
