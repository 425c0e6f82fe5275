"""`check` for models that are loaded as they are: config files and tokenizers, never weights."""

from __future__ import annotations

import json

import pytest

from tests import tiny_heads as heads
from tests.tiny import hf_config, write_checkpoint
from toolkit.preflight import preflight
from toolkit.recipe.load import load_recipe
from toolkit.store import Store


@pytest.fixture
def check(tmp_path):
    def run(**changes):
        recipe = {
            "name": "t",
            "backend": "pytorch",
            "target": {"checkpoint": "./target"},
            "speculation": {"drafter": "eagle3", "heads": {"checkpoint": "./heads"}},
            **changes,
        }
        path = tmp_path / "r.yaml"
        path.write_text(json.dumps(recipe), encoding="utf-8")
        return preflight(load_recipe(str(path)), Store(tmp_path / "store"), offline=True)

    write_checkpoint(tmp_path / "target", dtype="float16")
    heads.write_heads(tmp_path / "heads", heads.eagle3(), heads.eagle3_config())
    return run


def test_a_good_recipe_passes_and_says_what_the_model_is(check):
    report = check()
    assert report.problems == []
    assert report.missing == []
    assert report.models["target"]["architecture"] == "LlamaForCausalLM"
    assert report.models["target"]["num_hidden_layers"] == 2


def test_a_target_of_an_unknown_family_and_without_weights_passes(check, tmp_path):
    config = hf_config("llama", architectures=["DeepseekV3ForCausalLM"], num_nextn_predict_layers=1)
    for weights in (tmp_path / "target").glob("*.safetensors"):
        weights.unlink()
    (tmp_path / "target" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert check(speculation={"drafter": "mtp"}).problems == []


def test_a_target_without_mtp_layers_is_refused(check):
    report = check(speculation={"drafter": "mtp"})
    assert any("no such layers" in problem for problem in report.problems)


def test_a_broken_head_is_refused_by_name(check, tmp_path):
    tensors = heads.eagle3()
    del tensors["lm_head.weight"]
    heads.write_heads(tmp_path / "heads", tensors, heads.eagle3_config())
    report = check()
    assert any("lm_head.weight: missing" in problem for problem in report.problems)


def test_a_draft_of_another_tokenizer_is_refused(check, tmp_path):
    write_checkpoint(tmp_path / "draft", dtype="float16")
    path = tmp_path / "draft" / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[5:7]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    report = check(speculation={"drafter": "draft_target", "draft": {"checkpoint": "./draft"}})
    assert any(problem.startswith("draft tokenizer") for problem in report.problems)


def test_what_lies_on_the_hub_is_a_note(check):
    report = check(
        target={"checkpoint": "org/target"},
        speculation={"drafter": "draft_target", "draft": {"checkpoint": "org/draft"}},
    )
    assert report.problems == []
    looked = [note for note in report.notes if "not fetched yet" in note]
    assert len(looked) == 2


def test_a_directory_that_is_not_there_is_a_problem(check, tmp_path):
    (tmp_path / "target" / "config.json").unlink()
    assert any("config.json" in problem for problem in check().problems)


def test_traps_are_notes(check):
    report = check(speculation={"drafter": "ngram"})
    assert any("the overlap scheduler is off" in note for note in report.notes)
