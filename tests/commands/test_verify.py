import json
import re
from xml.etree import ElementTree

import pytest

from tests.engine_fixtures import tiny_recipe, write_tiny_model
from toolkit.cli import main
from toolkit.recipe.load import dump_recipe

GREEDY = ("--checks", "greedy")
NO_TASKS = ("--set", "engine.max_input_len=64")  # too short for the bundled questions


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
    code, out, _ = run(capsys, *recipe, *GREEDY, "--prompts", "6", "--max-tokens", "40")
    assert code == 0
    assert "plain decoding reproduces itself" in out
    assert "greedy text with speculation equals plain text on all 6 prompts" in out


def test_json_is_one_document(recipe, capsys):
    code, out, _ = run(capsys, *recipe, *GREEDY, "--prompts", "3", "--k", "5", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "spectool.verify/1"
    assert found["passed"] is True
    [domain] = found["checks"]["greedy"]["domains"]
    assert (domain["domain"], domain["prompts"], domain["identical"]) == ("letters", 3, 3)
    assert domain["accepted_tokens"] > 0


def test_a_changed_text_is_exit_code_1_and_shows_where(recipe, capsys, monkeypatch):
    monkeypatch.setattr(
        "toolkit.speculation.steps.verify_greedy",
        lambda drafted, target: ([*drafted, target[-1]], len(drafted)),
    )
    code, out, _ = run(
        capsys, *recipe, *GREEDY, "--prompts", "6", "--set", "speculation.max_draft_len=6"
    )
    assert code == 1
    assert "this is a bug" in out
    assert "letters/letters-" in out


def test_every_check_by_default_and_a_verdict_for_ci(recipe, capsys, tmp_path):
    few = ("--prompts", "3", "--max-tokens", "12", "--samples", "6", "--sample-prompts", "2")
    junit = tmp_path / "verify.xml"
    code, out, err = run(capsys, *recipe, *few, *NO_TASKS, "--batch", "8", "--junit", str(junit))
    assert code == 0
    lines = dict(re.findall(r"^(greedy|sampled|json|choice) +(pass|FAIL) ", out, re.MULTILINE))
    # What does not fit is said, and not counted as passed.
    assert lines == {"greedy": "pass", "sampled": "pass"}
    assert "choice: 48 of 48 prompts are longer than engine.max_input_len (64 tokens)" in err
    assert out.splitlines()[-1].startswith("lossless: greedy, sampled passed")
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")


def test_answers_are_worth_the_same_on_the_real_engine(recipe, capsys):
    code, out, _ = run(capsys, *recipe, "--checks", "json,choice", "--batch", "8", "--json")
    checks = json.loads(out)["checks"]
    assert code == 0
    assert set(checks) == {"json", "choice"}
    for check in checks.values():
        assert check["prompts"] > 1
        assert check["divergences"] == []
        assert check["plain"] == check["speculative"]


def test_a_failure_is_a_failure_in_junit_too(recipe, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "toolkit.speculation.steps.verify_greedy",
        lambda drafted, target: ([*drafted, target[-1]], len(drafted)),
    )
    junit = tmp_path / "verify.xml"
    code, _, _ = run(capsys, *recipe, *GREEDY, "--prompts", "6", "--junit", str(junit))
    assert code == 1
    failure = ElementTree.parse(junit).getroot().find("testcase/failure")
    assert "this is a bug" in failure.get("message")


def test_acceptance_is_told_in_another_tools_words_too(recipe, capsys):
    _, out, _ = run(capsys, *recipe, *GREEDY, "--prompts", "3", "--json", "--as", "vllm-2024")
    found = json.loads(out)
    [domain], [spoken] = found["checks"]["greedy"]["domains"], found["as"]["domains"]
    # That tool left the bonus or recovered token out of the length.
    assert spoken["acceptance_length"] == domain["accepted_tokens"] / domain["verify_steps"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--checks", "gredy"], "'gredy' is no check; did you mean 'greedy'?"),
        (["--as", "vlm"], "unknown dialect 'vlm'; did you mean 'vllm'?"),
        (["--max-tokens", "1"], "--max-tokens"),
        (["--checks", "choice", *NO_TASKS], "nothing is left to check"),
    ],
)
def test_bad_options_are_exit_code_2(recipe, capsys, options, sentence):
    code, _, err = run(capsys, *recipe, *options)
    assert code == 2
    assert sentence in err


def test_nothing_to_verify_is_exit_code_2(recipe, capsys):
    code, _, err = run(capsys, *recipe, "--set", "speculation={drafter: none}")
    assert code == 2
    assert "nothing to verify" in err


def test_prompts_too_long_for_the_engine_are_named(recipe, capsys):
    code, _, err = run(capsys, *recipe, "--set", "tune.prompts={edit: edit}")
    assert code == 2
    assert "longer than engine.max_input_len" in err
    assert "edit/edit-" in err
