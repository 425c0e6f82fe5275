"""One repository of every layout, with engines and without, and its bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.conftest import with_layout
from tests.serving.llmapi.deployments import deployed, recipe
from tests.serving.tensorrt.conftest import recipe_for
from tests.serving.trt_engines import trt_built
from toolkit.engine.built import BuiltModels
from toolkit.serving.deploy.bundle import Bundle, open_bundle
from toolkit.serving.repository import write_repository

NAMES = ("inprocess", "cpu bls", "engines bls", "engines medusa", "llmapi", "llmapi tp 4")


@pytest.fixture(scope="session")
def bundles(built: BuiltModels, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """By name, all with their engines inside."""
    directory = tmp_path_factory.mktemp("bundles")
    placed = {"checkpoint": "org/target", "parallel": {"tp": 4}}
    models = {
        "inprocess": with_layout(built, "inprocess"),
        "cpu bls": with_layout(built, "bls"),
        "engines bls": trt_built(directory / "pair", recipe_for("draft_target", tp=2)),
        "engines medusa": trt_built(directory / "medusa", recipe_for("medusa")),
        "llmapi": deployed(recipe(), directory / "llmapi"),
        "llmapi tp 4": deployed(recipe(target=placed), directory / "tp4"),
    }
    return {
        name: open_bundle(write_repository(made, directory / f"{name} repo", copy_engines=True))
        for name, made in models.items()
    }


@pytest.fixture(params=NAMES)
def bundle(request: pytest.FixtureRequest, bundles: dict[str, Bundle]) -> Bundle:
    return bundles[request.param]


@pytest.fixture
def fake_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """A `docker` on PATH that writes down what it is called with; returns a reader of that."""
    directory, log = tmp_path / "bin", tmp_path / "docker.log"
    directory.mkdir()
    program = directory / "docker"
    program.write_text(f'#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done >> {log}\n'
                       f'printf "\\n" >> {log}\n')  # fmt: skip
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")

    def calls() -> list[list[str]]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.split("\0")[:-1] for line in lines]

    return calls
