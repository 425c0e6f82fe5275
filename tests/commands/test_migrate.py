"""`spectool migrate`: a recipe on stdout or in a new file, and what became of each field."""

from __future__ import annotations

import json

import pytest

from tests.recipes_for_tests import write_recipe
from toolkit.recipe.load import load_recipe

RECIPE = """\
name: engines
backend: tensorrt
tensorrt_llm: "0.16.0"
target: {checkpoint: org/target, parallel: {tp: 2}}
speculation:
  drafter: draft_target
  draft: {checkpoint: org/draft}
  max_draft_len: 5
tensorrt: {flags: {gemm_plugin: auto}}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def test_the_recipe_is_on_stdout_and_the_report_on_stderr(spectool, recipe, tmp_path):
    ran = spectool("migrate", recipe, "--to", "pytorch")
    assert ran.code == 0
    assert "dropped  tensorrt.flags.gemm_plugin" in ran.err
    assert "kept     speculation.max_draft_len" in ran.err
    out = tmp_path / "out.yaml"
    out.write_text(ran.out, encoding="utf-8")
    assert load_recipe(str(out)).backend == "pytorch"


def test_a_file_says_where_it_came_from_and_what_was_lost(spectool, recipe, tmp_path):
    out = tmp_path / "new.yaml"
    ran = spectool("migrate", recipe, "--to", "pytorch", "--version", "1.3.0rc27", "-o", out)
    assert ran.code == 0
    assert "changed  tensorrt_llm" in ran.out
    assert f"try: spectool check {out}" in ran.out
    head = out.read_text(encoding="utf-8").splitlines()
    assert head[0].endswith("to TensorRT-LLM 1.3.0rc27's PyTorch backend.")
    assert any(line.startswith("# dropped: tensorrt.flags.gemm_plugin") for line in head)
    assert load_recipe(str(out)).tensorrt_llm == "1.3.0rc27"


def test_a_file_is_never_overwritten(spectool, recipe):
    ran = spectool("migrate", recipe, "--to", "pytorch", "-o", recipe)
    assert ran.code == 2
    assert recipe.read_text(encoding="utf-8") == RECIPE


def test_json_is_one_document(spectool, recipe):
    ran = spectool("migrate", recipe, "--to", "pytorch", "--json")
    found = json.loads(ran.out)
    assert ran.err == ""
    assert found["recipe"]["backend"] == "pytorch"
    assert {"field": "speculation.max_draft_len", "kind": "kept", "text": "5"} in found["changes"]
    assert found["yaml"].startswith("# Migrated from ")


def test_a_refusal_is_bad_input_with_every_reason(spectool, recipe):
    ran = spectool(
        "migrate", recipe, "--to", "pytorch", "--set", "target.quantization=w8a16",
        "--set", "speculation.draft.layers=[0, 1]",
    )  # fmt: skip
    assert ran.code == 2
    assert "2 problem(s)" in ran.err
    assert "target.quantization: " in ran.err
    assert "speculation.draft.layers: " in ran.err
    assert ran.out == ""


def test_a_drafter_of_engines_is_refused_by_name(spectool, recipe):
    ran = spectool(
        "migrate", recipe, "--to", "pytorch", "--set", "speculation={drafter: lookahead}"
    )
    assert ran.code == 2
    assert "speculation.drafter: lookahead" in ran.err
    assert "nearest there: ngram" in ran.err


def test_an_unknown_backend_is_bad_input(spectool, recipe):
    ran = spectool("migrate", recipe, "--to", "pytroch")
    assert ran.code == 2
    assert "did you mean 'pytorch'" in ran.err


def test_a_wrong_release_is_bad_input(spectool, recipe):
    ran = spectool("migrate", recipe, "--to", "pytorch", "--version", "0.20.0")
    assert ran.code == 2
    assert "needs TensorRT-LLM 1.0 or newer" in ran.err


CHECKED = "backend: tensorrt\ntune: {batch: [1, 2], max_tokens: 8}\n"


@pytest.mark.parametrize("release", ["1.0.0", "1.2.1", "1.3.0rc27", "1.4.0rc4"])
@pytest.mark.parametrize("draft", [None, "checkpoint: ./model, dtype: float32"])
def test_what_got_over_passes_the_check(spectool, tmp_path, draft, release):
    source, out = write_recipe(tmp_path, draft, CHECKED), tmp_path / "new.yaml"
    assert spectool("migrate", source, "--to", "pytorch", "--version", release, "-o", out).code == 0
    ran = spectool("check", out, "--offline")
    assert (ran.code, ran.err) == (0, "")
