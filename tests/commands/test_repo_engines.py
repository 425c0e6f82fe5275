"""`spectool repo` for TensorRT-LLM engines: built here, built elsewhere, or not to be had."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.engine.trtllm.installation import FakeInstallation
from tests.engine_fixtures import write_tiny_model
from tests.serving.deploy.conftest import fake_docker  # noqa: F401 - a fixture
from tests.serving.test_ports import free_ports
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


@pytest.fixture
def repository(spectool, recipe, tmp_path, monkeypatch):
    """Of engines that were built elsewhere."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    built = trt_built(tmp_path / "elsewhere", load_recipe(str(recipe)))
    given = [
        word for role, path in built.engines.items() for word in ("--engine", f"{role}={path}")
    ]
    spectool("repo", recipe, "-o", tmp_path / "repo", *given, "--tokenizer", built.tokenizer_dir)
    return tmp_path / "repo"


def test_serving_it_here_says_where_it_runs(spectool, repository):
    ran = spectool("serve", repository)
    assert ran.code == 3
    assert "it needs Triton with backend tensorrtllm, which is not here" in ran.err
    assert "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3" in ran.err
    assert f"spectool serve --docker {repository}" in ran.err
    [by_hand] = [line for line in ran.err.splitlines() if line.startswith("by hand: ")]
    words = shlex.split(by_hand.removeprefix("by hand: "))
    assert words[: words.index("&&")] == ["spectool", "deploy", str(repository), "-o", "deployment"]
    assert words[-1] == f"{repository}/launch.sh"
    assert f"type=bind,source={repository},target={repository},readonly" in words


def test_without_docker_it_cannot_be_run_in_one(spectool, repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = spectool("serve", repository, "--docker")
    assert ran.code == 3
    assert "no docker on PATH" in ran.err


def test_docker_is_called_with_lists_and_cleaned_up_after(
    spectool,
    repository,
    fake_docker,  # noqa: F811
):
    """The fake container ends at once, which is a failure that leaves nothing behind."""
    free = [str(port) for port in free_ports(3)]
    ports = zip(("--http-port", "--grpc-port", "--metrics-port"), free, strict=True)
    ran = spectool("serve", repository, "--docker", *(word for pair in ports for word in pair))
    assert ran.code == 1
    assert "ended with exit code 0" in ran.err
    build, run, remove = fake_docker()
    assert build[:2] == ["build", "--tag"]
    assert run[0] == "run"
    name = run[run.index("--name") + 1]
    assert remove == ["rm", "--force", name]
    assert f"127.0.0.1:{free[0]}:8000" in run
    assert [path.name for path in repository.parent.glob(".repo.docker-*")] == []


def test_deploy_writes_it_all_and_says_what_to_do(spectool, repository, tmp_path):
    ran = spectool("deploy", repository, "-o", tmp_path / "deployment")
    assert ran.code == 0, ran.err
    assert "2 GPU(s)" in ran.out
    assert "note: no kubernetes/" in ran.out
    assert (tmp_path / "deployment/compose.yaml").is_file()
    again = spectool("deploy", repository, "-o", tmp_path / "deployment", "--json")
    assert again.code == 2
    assert "not empty" in again.err
    document = json.loads(spectool("deploy", repository, "-o", tmp_path / "two", "--json").out)
    assert document["base"] == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert document["kubernetes"] is False


def test_a_wrong_placement_is_said_when_the_recipe_is_read(spectool, recipe):
    ran = spectool("check", recipe, "--set", "serve.tensorrt.target.gpus=[0]")
    assert ran.code == 2
    assert "serve.tensorrt.target.gpus" in ran.out + ran.err
    assert "1 GPU(s) for an engine of 2 rank(s)" in ran.out + ran.err
