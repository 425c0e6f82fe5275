"""Images by release, what is put on top of them, and the command that runs a repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.bundled import bundled
from toolkit.errors import InputError
from toolkit.recipe.load import load_recipe
from toolkit.serving.deploy.docker import (
    build_command,
    image_name,
    requirements,
    run_command,
    write_context,
)
from toolkit.serving.deploy.images import TAGS, image_of, tag_of
from toolkit.serving.server import Address


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("0.16.0", "24.12"),
        ("0.17.0.post1", "25.02"),
        ("0.18.1", "25.04"),
        ("0.20.0", "25.07"),
        ("1.0.0", "25.10"),
        ("1.1.0", "26.02"),
        ("1.2.1", "26.07"),
        ("1.2.0rc2", "26.07"),
    ],
)
def test_the_tag_is_that_of_nvidias_compatibility_matrix(version, tag):
    assert tag_of(version) == tag


def test_a_release_without_an_image_asks_for_one():
    with pytest.raises(InputError, match=r"TensorRT-LLM 1\.3\.0rc1 .*serve\.image"):
        tag_of("1.3.0rc1")


def test_every_image_is_pinned():
    for tag in TAGS.values():
        assert len(tag) == 5


RECIPES = sorted(bundled("recipes").rglob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_bundled_recipe_has_an_image_or_a_reason(path):
    recipe = load_recipe(str(path))
    if recipe.tensorrt_llm.startswith(("1.3", "1.4")) and recipe.backend == "pytorch":
        with pytest.raises(InputError, match=r"serve\.image"):
            image_of(recipe)
    else:
        _, colon, tag = image_of(recipe).rpartition(":")
        assert colon
        assert tag != "latest"


def test_a_container_sees_everything_where_it_is_here(bundle):
    command = run_command(bundle, Address("127.0.0.1", 18000, 18001, 18002), "name")
    assert command[:5] == ["docker", "run", "--rm", "--init", "--name"]
    repository = str(bundle.repository)
    assert f"type=bind,source={repository},target={repository},readonly" in command
    assert f"127.0.0.1:18000:{bundle.recipe.serve.http_port}" in command
    assert ("--gpus" in command) == (bundle.recipe.backend != "cpu")
    assert "--shm-size" in command
    place = command.index(image_name(bundle))
    inner = command[place + 1 :]
    assert inner[0] == ("python3" if bundle.recipe.backend == "cpu" else f"{repository}/launch.sh")


def test_what_lies_outside_is_mounted_too(built, tmp_path):
    from tests.serving.conftest import with_layout
    from toolkit.serving.deploy.bundle import open_bundle
    from toolkit.serving.repository import write_repository

    bundle = open_bundle(write_repository(with_layout(built, "bls"), tmp_path / "repo"))
    command = run_command(bundle, Address(), "name")
    for directory in (*built.engines.values(), built.tokenizer_dir):
        assert f"type=bind,source={directory},target={directory},readonly" in command
    comma = open_bundle(write_repository(with_layout(built, "bls"), tmp_path / "a,b"))
    with pytest.raises(InputError, match="no comma"):
        run_command(comma, Address(), "name")


def test_the_context_holds_the_code_that_wrote_the_repository(bundles, tmp_path):
    write_context(bundles["llmapi"], tmp_path)
    dockerfile = (tmp_path / "Dockerfile").read_text()
    assert "FROM nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3\n" in dockerfile
    code = "import toolkit.serving.models.llmapi as m; print(m.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "spectool", capture_output=True, text=True,
        env={"PYTHONPATH": str(tmp_path / "spectool")}, check=True,
    )  # fmt: skip
    assert ran.stdout.strip().startswith(str(tmp_path))
    listed = (tmp_path / "spectool/requirements.txt").read_text()
    assert "tokenizers" in listed
    assert "openvino" not in listed
    assert any(need.startswith("openvino") for need in requirements(("cpu", "triton")))


def test_the_image_is_named_by_what_is_in_it(bundles):
    assert build_command(bundles["engines bls"], Path("x")) == [
        "docker", "build", "--tag",
        "spectool-tensorrt:0.1.0-tritonserver-26.07-trtllm-python-py3", "x",
    ]  # fmt: skip
