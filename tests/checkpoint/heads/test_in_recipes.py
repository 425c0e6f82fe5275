"""Heads in a recipe: part of the checkpoint, of its digest, and of what `convert` writes."""

from __future__ import annotations

import json

import pytest

from tests import tiny_heads as heads
from tests.tiny import write_checkpoint
from toolkit.checkpoint.heads.head import head_of
from toolkit.errors import InputError
from toolkit.execute import convert_recipe
from toolkit.plan import make_plan
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS, HEADS
from toolkit.store import Store

TREE = [[0], [0, 0], [1]]


def recipe(folder, drafter="medusa", *, tensorrt_llm="1.2.1", **speculation):
    if not (folder / "model").exists():
        write_checkpoint(folder / "model")
    return Recipe.model_validate(
        {
            "name": "tiny",
            "backend": "tensorrt",
            "tensorrt_llm": tensorrt_llm,
            "target": {"checkpoint": str(folder / "model"), "dtype": "float16"},
            "speculation": {
                "drafter": drafter,
                "heads": {"checkpoint": str(folder / "heads")},
                **speculation,
            },
            "engine": {"max_batch_size": 2, "max_input_len": 32, "max_seq_len": 64},
        }
    )


@pytest.fixture
def medusa(tmp_path):
    heads.write_heads(tmp_path / "heads", heads.medusa(), {}, "medusa_lm_head.safetensors")
    return tmp_path


def checkpoint_digest(made, store):
    plan = make_plan(made, store)
    (found,) = [a for a in plan.artefacts if a.kind == "checkpoints"]
    return found.digest


def test_other_heads_are_another_checkpoint(medusa):
    store = Store(medusa / "store")
    options = {"medusa_choices": TREE}
    first = checkpoint_digest(recipe(medusa, **options), store)
    heads.write_heads(medusa / "heads", heads.medusa(seed=9), {}, "medusa_lm_head.safetensors")
    second = checkpoint_digest(recipe(medusa, **options), store)
    third = checkpoint_digest(recipe(medusa, num_medusa_heads=2, **options), store)
    plain = recipe(medusa).model_copy(
        update={"speculation": DRAFTERS["ngram"].Options.model_validate({"drafter": "ngram"})}
    )
    assert len({first, second, third, checkpoint_digest(plain, store)}) == 4


def test_what_does_not_change_the_bytes_does_not_change_the_digest(medusa):
    store = Store(medusa / "store")
    same = {
        checkpoint_digest(recipe(medusa, medusa_choices=TREE, tensorrt_llm=version), store)
        for version in ("0.16.0", "1.2.1")
    }
    same.add(checkpoint_digest(recipe(medusa, medusa_choices=TREE[:2]), store))
    assert len(same) == 1


def test_a_release_that_spells_the_architecture_otherwise_changes_the_digest(tmp_path):
    store = Store(tmp_path / "store")
    heads.write_heads(tmp_path / "heads", heads.redrafter(), heads.redrafter_config())
    found = {
        version: checkpoint_digest(recipe(tmp_path, "redrafter", tensorrt_llm=version), store)
        for version in ("0.16.0", "1.0.0", "1.2.1")
    }
    assert found["1.0.0"] == found["1.2.1"] != found["0.16.0"]


def test_the_plan_says_which_heads_go_in(medusa):
    plan = make_plan(recipe(medusa, medusa_choices=TREE), Store(medusa / "store"))
    (checkpoint,) = [a for a in plan.artefacts if a.kind == "checkpoints"]
    assert f"with medusa heads {medusa / 'heads'}" in checkpoint.command
    assert checkpoint.spec["heads"]["kind"] == "medusa"
    assert list(checkpoint.spec["heads"]["source"]["files"]) == [
        "medusa_lm_head.safetensors",
        "config.json",
    ]


def test_heads_that_are_not_there_are_a_problem_of_the_plan(tmp_path):
    with pytest.raises(InputError, match="heads"):
        make_plan(recipe(tmp_path, medusa_choices=TREE), Store(tmp_path / "store"))


def test_convert_writes_target_and_heads_as_one_checkpoint(medusa):
    out = medusa / "out"
    convert_recipe(recipe(medusa, medusa_choices=TREE), out, Store(medusa / "store"))
    config = json.loads((out / "checkpoints/target/config.json").read_text())
    assert config["architecture"] == "MedusaForCausalLM"
    assert (config["num_medusa_heads"], config["max_draft_len"]) == (4, 63)
    assert not (out / "checkpoints/heads").exists()


def test_only_converted_heads_belong_to_the_checkpoint(tmp_path):
    assert head_of(recipe(tmp_path, "eagle3")) is None


@pytest.mark.parametrize("release", [(0, 16), (1, 0), (1, 2)])
@pytest.mark.parametrize("kind", HEADS)
def test_drafter_and_converter_know_the_same_targets(kind, release):
    assert DRAFTERS[kind].architectures(release) == set(HEADS[kind].targets(release))
