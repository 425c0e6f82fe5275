"""`spectool repo` for TensorRT-LLM engines: built here, built elsewhere, or not to be had."""

from __future__ import annotations

import json

import pytest

from tests.engine.trtllm.installation import FakeInstallation
from tests.engine_fixtures import write_tiny_model
from tests.serving.trt_engines import trt_built
from toolkit.recipe.load import load_recipe

RECIPE = """
name: pair
backend: tensorrt
tensorrt_llm: "1.2.1"
target: {{checkpoint: {target}, dtype: float16, parallel: {{tp: 2}}}}
speculation:
  drafter: draft_target
  max_draft_len: 4
  draft: {{checkpoint: {draft}, dtype: float16}}
engine: {{max_batch_size: 4, max_input_len: 128, max_seq_len: 200}}
"""


@pytest.fixture
def recipe(tmp_path):
    for role in ("target", "draft"):
        write_tiny_model(tmp_path / role)
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(target=tmp_path / "target", draft=tmp_path / "draft"))
    return path


def test_without_trtllm_build_one_sentence_says_so(spectool, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    ran = spectool("repo", recipe, "-o", tmp_path / "repo")
    assert ran.code == 3
    assert ran.err.count("\n") == 1
    assert "trtllm-build is not on PATH; build on a GPU machine" in ran.err
    assert not (tmp_path / "repo").exists()


def test_engines_that_are_built_here_become_a_repository(spectool, recipe, tmp_path, monkeypatch):
    FakeInstallation(tmp_path / "machine", monkeypatch)
    ran = spectool("repo", recipe, "-o", tmp_path / "repo", "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["entry"] == "tensorrt_llm_bls"
    assert document["launch"] == str(tmp_path / "repo/launch.sh")
    assert document["notes"][0] == "spawn, world size 1, target on GPU 0,1; draft on GPU 0"
    manifest = json.loads((tmp_path / "repo/manifest.json").read_text())
    assert all(len(digest) == 32 for digest in manifest["engines"].values())
    assert "launch.sh" in manifest["files"]
    linted = spectool("lint", tmp_path / "repo", "--json")
    assert json.loads(linted.out)["findings"] == []


def test_the_launch_command_is_printed(spectool, recipe, tmp_path, monkeypatch):
    FakeInstallation(tmp_path / "machine", monkeypatch)
    ran = spectool("repo", recipe, "-o", tmp_path / "repo")
    assert ran.code == 0, ran.err
    assert "KV cache, in load order: target 0." in ran.out
    assert "mpirun" in ran.out
    assert "--model-repository=" in ran.out
    assert ran.out.splitlines()[-1].startswith(f"next: {tmp_path}/repo/launch.sh")


def test_engines_from_elsewhere_need_nothing_here(spectool, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    built = trt_built(tmp_path / "elsewhere", load_recipe(str(recipe)))
    given = [f"{role}={path}" for role, path in built.engines.items()]
    ran = spectool(
        "repo", recipe, "-o", tmp_path / "repo", "--engine", given[0], "--engine", given[1],
        "--tokenizer", built.tokenizer_dir, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["models"][2:4] == ["tensorrt_llm", "tensorrt_llm_draft"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--engine", "target=."], "--engine draft=DIR is missing"),
        (["--engine", "tarjet=."], "did you mean 'target'"),
        (["--engine", "."], "write ROLE=DIR"),
        (["--engine", "target=.", "--engine", "target=."], "--engine target is given twice"),
        (["--engine", "draft=/nowhere"], "/nowhere is not a directory"),
        (["--engine", "target=."], "--tokenizer DIR is missing"),
        (["--tokenizer", "/nowhere"], "no tokenizer.json in /nowhere"),
    ],
)
def test_what_is_missing_or_wrong_is_said_at_once(spectool, recipe, tmp_path, given, said):
    ran = spectool("repo", recipe, "-o", tmp_path / "repo", *given)
    assert ran.code == 2
    assert said in ran.err


def test_serving_it_here_says_where_it_runs(spectool, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    built = trt_built(tmp_path / "elsewhere", load_recipe(str(recipe)))
    given = [
        word for role, path in built.engines.items() for word in ("--engine", f"{role}={path}")
    ]
    spectool("repo", recipe, "-o", tmp_path / "repo", *given, "--tokenizer", built.tokenizer_dir)
    ran = spectool("serve", tmp_path / "repo")
    assert ran.code == 3
    assert "need Triton's backend tensorrtllm" in ran.err
    assert str(tmp_path / "repo/launch.sh") in ran.err


def test_a_wrong_placement_is_said_when_the_recipe_is_read(spectool, recipe):
    ran = spectool("check", recipe, "--set", "serve.tensorrt.target.gpus=[0]")
    assert ran.code == 2
    assert "serve.tensorrt.target.gpus" in ran.out + ran.err
    assert "1 GPU(s) for an engine of 2 rank(s)" in ran.out + ran.err
