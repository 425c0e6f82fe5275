"""A recipe that chose typical acceptance: every command says that its output is another one."""

import json

import pytest

from tests.head_fixtures import tiny_head_files
from toolkit.recipe.load import dump_recipe

LOSSY = "lossy: output is not the target's distribution"
CHOICES = [[0], [1], [0, 0], [1, 0], [0, 1]]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lossy")
    made = tiny_head_files(
        directory, "medusa", max_draft_len=5, medusa_choices=CHOICES, posterior_threshold=0.001
    )
    lines = ({"prompt": letter * 9, "raw": True} for letter in "abcdef")
    (directory / "letters.jsonl").write_text("\n".join(map(json.dumps, lines)))
    tune = {"prompts": {"letters": str(directory / "letters.jsonl")}, "k": (2,), "batch": (1,)}
    made = made.model_copy(update={"tune": made.tune.model_copy(update={**tune, "max_tokens": 12})})
    path = directory / "recipe.yaml"
    path.write_text(dump_recipe(made))
    return path


def test_check_warns_and_goes_on(recipe, spectool):
    ran = spectool("check", recipe)
    assert ran.code == 0, ran.err
    assert f"speculation.posterior_threshold: {LOSSY}" in ran.out + ran.err
    exact = spectool("check", recipe, "--set", "speculation.posterior_threshold=null")
    assert LOSSY not in exact.out + exact.err


def test_tensorrt_has_none_for_medusa(recipe, spectool):
    ran = spectool("check", recipe, "--set", "backend=tensorrt")
    assert ran.code == 2
    assert "TensorRT-LLM's Medusa has no parameter for it" in ran.err


def test_generate_notes_it_where_it_is_so(recipe, spectool):
    words = ("generate", recipe, "--raw", "--prompt", "aaaa", "--max-tokens", 24, "--seed", 1)
    ran = spectool(*words, "--temperature", 1)
    assert ran.code == 0, ran.err
    assert LOSSY in ran.err
    assert LOSSY not in spectool(*words).err  # greedy: exact
    assert LOSSY not in spectool(*words, "--temperature", 1, "--no-speculation").err
    found = json.loads(spectool(*words, "--temperature", 1, "--json").out)
    assert found["lossy"].startswith(LOSSY)
    assert json.loads(spectool(*words, "--json").out)["lossy"] is None


def test_verify_says_lossy_by_choice_and_does_not_pass(recipe, spectool):
    words = ("verify", recipe, "--sample-prompts", 2, "--samples", 64, "--sample-tokens", 8)
    ran = spectool(*words, "--checks", "greedy,sampled", "--json")
    assert ran.code == 1, ran.err
    found = json.loads(ran.out)
    assert found["passed"] is False
    assert found["lossy"].startswith(LOSSY)
    assert found["conclusion"].startswith("lossy by choice: speculation changes the distribution")
    assert LOSSY in found["conclusion"]
    assert "bug" not in found["conclusion"]
    assert found["checks"]["greedy"]["passed"] is True
    assert found["checks"]["sampled"]["compared"]["differ"] is True

    few = spectool("verify", recipe, "--sample-prompts", 1, "--samples", 2, "--checks", "sampled")
    assert few.code == 1
    assert "too few to show it: lossy" in few.out


def test_verify_of_greedy_texts_passes_and_says_where_it_ends(recipe, spectool):
    ran = spectool("verify", recipe, "--checks", "greedy")
    assert ran.code == 0
    assert f"passed (false-alarm rate 0.001); when sampling, {LOSSY}" in ran.out
    assert "lossless" not in ran.out


def test_tune_says_it_in_table_and_report(recipe, spectool, tmp_path):
    ran = spectool("tune", recipe, "--temperature", 1, "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert f"measuring every point: drafter 'medusa' has no trace: {LOSSY}" in ran.err
    assert LOSSY in ran.out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert any(finding["text"].startswith(LOSSY) for finding in results["findings"])
    assert "lossy: output is not the target" in (tmp_path / "out" / "report.html").read_text()


def test_a_trace_predicts_exact_verification_only(recipe, spectool, tmp_path):
    out = ("--mode", "trace", "--out", tmp_path / "out")
    ran = spectool("tune", recipe, "--temperature", 1, *out)
    assert ran.code == 2
    assert f"drafter 'medusa' has no trace: {LOSSY}" in ran.err
    assert "measure it with tune --mode grid" in ran.err
