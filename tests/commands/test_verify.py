import json

import pytest

from tests.engine_fixtures import tiny_recipe, write_tiny_model
from toolkit.cli import main
from toolkit.recipe.load import dump_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    directory = tmp_path_factory.mktemp("verify")
    write_tiny_model(directory / "target")
    write_tiny_model(directory / "draft", noise=0.02)
    prompts = directory / "letters.jsonl"
    lines = ({"prompt": letter * 9, "raw": True} for letter in "abcdefg")
    prompts.write_text("\n".join(map(json.dumps, lines)))
    found = tiny_recipe(directory, max_draft_len=3)
    tune = found.tune.model_copy(update={"prompts": {"letters": str(prompts)}})
    path = directory / "recipe.yaml"
    path.write_text(dump_recipe(found.model_copy(update={"tune": tune})))
    return [str(path), "--store", str(directory / "store")]


def run(capsys, *arguments):
    code = 0
    try:
        main(["verify", *arguments])
    except SystemExit as done:
        code = done.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_float32_engine_is_lossless_token_by_token(recipe, capsys):
    code, out, _ = run(capsys, *recipe, "--prompts", "6", "--max-tokens", "40")
    assert code == 0
    assert "plain decoding reproduces itself" in out
    assert "greedy text with speculation equals plain text on all 6 prompts" in out


def test_json_is_one_document(recipe, capsys):
    code, out, _ = run(capsys, *recipe, "--prompts", "3", "--k", "5", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["passed"] is True
    [domain] = found["domains"]
    assert (domain["domain"], domain["prompts"], domain["identical"]) == ("letters", 3, 3)
    assert domain["accepted_tokens"] > 0


def test_a_changed_text_is_exit_code_1_and_shows_where(recipe, capsys, monkeypatch):
    monkeypatch.setattr(
        "toolkit.speculation.loop.verify_greedy",
        lambda drafted, target: ([*drafted, target[-1]], len(drafted)),
    )
    code, out, _ = run(capsys, *recipe, "--prompts", "6", "--set", "speculation.max_draft_len=6")
    assert code == 1
    assert "this is a bug" in out
    assert "letters/letters-" in out


def test_nothing_to_verify_is_exit_code_2(recipe, capsys):
    code, _, err = run(capsys, *recipe, "--set", "speculation={drafter: none}")
    assert code == 2
    assert "nothing to verify" in err


def test_prompts_too_long_for_the_engine_are_named(recipe, capsys):
    code, _, err = run(capsys, *recipe, "--set", "tune.prompts={edit: edit}")
    assert code == 2
    assert "longer than engine.max_input_len" in err
    assert "edit/edit-" in err
