"""Drafting heads from the command line: an engine of their own, beside their target's."""

import json

import pytest

from tests.head_fixtures import tiny_head_files
from toolkit.recipe.load import dump_recipe


@pytest.fixture
def recipe(tmp_path):
    made = tiny_head_files(tmp_path, "eagle3", max_draft_len=3)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(made))
    return tmp_path / "recipe.yaml"


def test_check_plan_build_generate_and_a_repository(recipe, spectool, tmp_path):
    assert spectool("check", recipe).code == 0
    plan = json.loads(spectool("plan", recipe, "--json").out)
    engines = {"+".join(a["roles"]): a for a in plan["artefacts"] if a["kind"] == "engines"}
    assert set(engines) == {"target", "heads"}
    assert engines["heads"]["inputs"] == engines["target"]["inputs"]
    built = spectool("build", recipe)
    assert built.code == 0, built.err
    said = {
        k: json.loads(
            spectool(
                "generate", recipe, "--prompt", "abc", "--max-tokens", "16", "--json",
                *options,
            ).out
        )
        for k, options in {0: ["--no-speculation"], 3: ["--k", "3"]}.items()
    }  # fmt: skip
    assert said[3]["text"] == said[0]["text"]
    assert spectool("repo", recipe, "-o", tmp_path / "repository").code == 0
    assert spectool("lint", tmp_path / "repository").code == 0


def test_two_models_of_a_repository_cannot_pass_states(recipe, spectool):
    refused = spectool("check", recipe, "--set", "serve.layout=bls")
    assert refused.code == 2
    assert "eagle3 needs the target's states" in refused.err + refused.out


def test_heads_of_another_target_are_refused_by_shape(recipe, spectool, tmp_path):
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    config["hidden_size"] *= 2
    (tmp_path / "head" / "config.json").write_text(json.dumps(config))
    refused = spectool("build", recipe)
    assert refused.code == 2
    assert "fc.weight: has shape" in refused.err


@pytest.mark.parametrize("place", ["bundled:smollm2/heads/none", "bundled:../../etc"])
def test_a_bundled_head_that_is_not_there_is_named(recipe, spectool, place):
    refused = spectool("plan", recipe, "--set", f"speculation.heads.checkpoint={place}")
    assert refused.code == 2
    assert "no such directory among spectool's recipes" in refused.err
