"""`spectool export`: text on stdout or in a new file, what is lost on stderr."""

from __future__ import annotations

import json

import pytest

RECIPE = """\
name: hub
target: {checkpoint: org/target}
speculation: {drafter: ngram, max_draft_len: 6}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def test_the_command_is_on_stdout_and_what_is_lost_on_stderr(spectool, recipe):
    ran = spectool("export", recipe, "--to", "vllm")
    assert ran.code == 0
    assert "vllm serve org/target" in ran.out
    assert "note: engine.max_input_len" in ran.err


def test_json_is_one_document(spectool, recipe):
    ran = spectool("export", recipe, "--to", "sglang", "--json")
    found = json.loads(ran.out)
    assert ran.err == ""
    assert found["to"] == "sglang"
    assert found["options"]["--speculative-num-draft-tokens"] == 7  # 6 drafted and the root
    assert found["notes"]


def test_a_file_is_written_once_and_never_over_another(spectool, recipe, tmp_path):
    out = tmp_path / "serve.sh"
    assert spectool("export", recipe, "--to", "tgi", "-o", out).code == 0
    assert out.read_text(encoding="utf-8").startswith("# Recipe hub for TGI")
    again = spectool("export", recipe, "--to", "vllm", "-o", out)
    assert again.code == 2
    assert "exists already" in again.err


def test_what_a_server_does_not_have_is_bad_input(spectool, recipe):
    ran = spectool(
        "export", recipe, "--to", "tgi", "--set", "speculation={drafter: draft_target, "
        "draft: {checkpoint: org/draft}}",
    )  # fmt: skip
    assert ran.code == 2
    assert "TGI has no 'draft_target' (it has: none, ngram, medusa)" in ran.err
    assert ran.out == ""


def test_an_unknown_server_is_bad_input(spectool, recipe):
    ran = spectool("export", recipe, "--to", "llamacpp")
    assert ran.code == 2
    assert "did you mean 'llama.cpp'" in ran.err
