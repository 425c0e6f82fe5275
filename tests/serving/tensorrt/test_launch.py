"""The command that starts Triton, rank by rank."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.serving.tensorrt.conftest import recipe_for
from toolkit.engine.trtllm.placement import placement
from toolkit.serving.tensorrt.launch import environment, launch_command, launch_script

SERVER = "/opt/tritonserver/bin/tritonserver"
PORTS = [
    f"--{protocol}-{what}"
    for protocol, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002))
    for what in ("address=127.0.0.1", f"port={port}")
]


def ranks(recipe) -> list[list[str]]:
    """The words of each rank after `mpirun --allow-run-as-root`."""
    words = launch_command(recipe, "/repo", "127.0.0.1")
    assert words[:2] == ["mpirun", "--allow-run-as-root"]
    found: list[list[str]] = [[]]
    for word in words[2:]:
        if word == ":":
            found.append([])
        else:
            found[-1].append(word)
    return found


def rank(number: int, *more: str) -> list[str]:
    last = [
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name=prefix{number}_",
    ]
    return ["-n", "1", SERVER, "--model-repository=/repo", *more, *last]


def test_one_engine_on_two_gpus_is_two_ranks_of_which_the_second_loads_the_engine_only():
    explicit = ["--model-control-mode=explicit", "--load-model=tensorrt_llm"]
    recipe = recipe_for("medusa", tp=2)
    assert ranks(recipe) == [rank(0, *PORTS), rank(1, *explicit, *PORTS)]
    assert environment(placement(recipe)) == {}


def test_two_engines_are_one_rank_that_spawns_and_leaves_the_gpus_memory_alone():
    pools = [
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        "--cuda-memory-pool-byte-size=0:0",
        "--cuda-memory-pool-byte-size=1:0",
    ]
    recipe = recipe_for("draft_target", placement="separate")
    assert ranks(recipe) == [rank(0, *PORTS, *pools)]
    assert environment(placement(recipe)) == {
        "TRTLLM_ORCHESTRATOR": "1",
        "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1",
    }


def test_participants_are_ranks_that_load_both_engines():
    explicit = [
        "--model-control-mode=explicit",
        "--load-model=tensorrt_llm",
        "--load-model=tensorrt_llm_draft",
    ]
    recipe = recipe_for("draft_target", tp=2, processes="participants")
    assert ranks(recipe) == [
        rank(0, *PORTS),
        *(rank(number, *explicit, *PORTS) for number in (1, 2, 3)),
    ]
    assert environment(placement(recipe))["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == "0"


@pytest.fixture
def mpirun(tmp_path):
    """A directory for PATH with an mpirun that says how it was called."""
    program = tmp_path / "bin" / "mpirun"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nenv | grep TRTLLM\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    return program.parent


def launched(script, mpirun):
    environ = {"PATH": f"{mpirun}:{os.environ['PATH']}"}
    return subprocess.run([str(script)], env=environ, capture_output=True, text=True, check=False)


def test_the_script_runs_that_command_on_the_repository_that_it_lies_in(tmp_path, mpirun):
    recipe = recipe_for("draft_target", processes="participants")
    script = tmp_path / "a-repo" / "launch.sh"
    script.parent.mkdir()
    script.write_text(launch_script(recipe))
    script.chmod(0o755)
    ran = launched(script, mpirun)
    assert ran.returncode == 0, ran.stderr
    environ = sorted(line for line in ran.stdout.splitlines() if line.startswith("TRTLLM"))
    assert environ == ["TRTLLM_ORCHESTRATOR=1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=0"]
    words = [line for line in ran.stdout.splitlines() if not line.startswith("TRTLLM")]
    assert words == launch_command(recipe, str(script.parent), "127.0.0.1")[1:]


def test_the_script_refuses_a_path_that_triton_would_wait_for_ever_on(tmp_path, mpirun):
    script = tmp_path / "my repo" / "launch.sh"
    script.parent.mkdir()
    script.write_text(launch_script(recipe_for("ngram")))
    script.chmod(0o755)
    ran = launched(script, mpirun)
    assert ran.returncode == 2
    assert "without quotes" in ran.stderr


def test_words_that_a_shell_would_read_are_quoted(tmp_path, mpirun):
    recipe = recipe_for("ngram", tritonserver="/opt/my server/$(id)")
    script = tmp_path / "launch.sh"
    script.write_text(launch_script(recipe))
    script.chmod(0o755)
    assert "/opt/my server/$(id)" in launched(script, mpirun).stdout.splitlines()
