"""A toy drafter, one class and one registry line, gets the commands for free."""

import json

import pytest

from tests.engine_fixtures import tiny_recipe, write_tiny_model
from toolkit.recipe.load import dump_recipe
from toolkit.registry import DRAFTERS

TOY = "tests.speculation.drafters.test_adding_one:ToyDrafter"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.setitem(DRAFTERS._entries, "toy", TOY)
    write_tiny_model(tmp_path / "target")
    made = tiny_recipe(tmp_path, drafter="toy", max_draft_len=3, favourite=97)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(made))
    return tmp_path / "recipe.yaml"


def test_check_plan_generate_verify_tune_and_serve(recipe, spectool, tmp_path):
    checked = spectool("check", recipe)
    assert (checked.code, "no problems found" in checked.out) == (0, True)
    planned = json.loads(spectool("plan", recipe, "--json").out)
    assert [artefact["kind"] for artefact in planned["artefacts"]] == [
        "checkpoints", "tokenizers", "engines",
    ]  # fmt: skip

    said = {}
    for draft_len, options in {0: ["--no-speculation"], 3: ["--k", "3"]}.items():
        ran = spectool(
            "generate", recipe, "--prompt", "aaaa", "--max-tokens", "12", "--json",
            *options,
        )  # fmt: skip
        assert ran.code == 0
        said[draft_len] = json.loads(ran.out)
    assert said[3]["text"] == said[0]["text"]
    assert said[3]["stats"]["draft_tokens"] > 0

    prompts = tmp_path / "toys.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"toy {i} toy {i}"}) + "\n" for i in range(3)))
    tuned = spectool(
        "tune", recipe, "--k", "1..2", "--batch", "1", "--max-tokens", "8", "--mode", "grid",
        "--set", f"tune.prompts={{toys: {prompts}}}", "--out", tmp_path / "tuned", "--json",
    )  # fmt: skip
    assert tuned.code == 0, tuned.err
    records = json.loads((tmp_path / "tuned" / "results.json").read_text())["records"]
    assert {record["k"] for record in records} == {0, 1, 2}
    assert {record["domain"] for record in records} == {"toys"}

    made = spectool("repo", recipe, "-o", tmp_path / "repository")
    assert made.code == 0, made.err
    assert spectool("lint", tmp_path / "repository").code == 0
