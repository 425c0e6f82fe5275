"""Repositories for engines, written once and copied to be broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.trtllm.recipes import made
from tests.serving.trt_engines import trt_built
from toolkit.engine.built import BuiltModels
from toolkit.recipe.schema import Recipe
from toolkit.serving.pbtxt import parameters_of, parse
from toolkit.serving.repository import write_repository


def recipe_for(drafter: str, *, version: str = "1.2.1", tp: int = 1, **serve: object) -> Recipe:
    """A small recipe with this in serve.tensorrt."""
    found = made(drafter, version=version, target={"parallel": {"tp": tp}})
    document = found.model_dump(mode="json") | {"serve": {"tensorrt": serve}}
    return Recipe.model_validate(document)


def parameters(repository: Path, model: str) -> dict[str, str]:
    return parameters_of(parse((repository / model / "config.pbtxt").read_text()))


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> BuiltModels:
    """A target and a draft on one GPU."""
    return trt_built(tmp_path_factory.mktemp("engines"), recipe_for("draft_target"))


@pytest.fixture(scope="session")
def engine_repository(engines: BuiltModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed: copy it first."""
    return write_repository(engines, tmp_path_factory.mktemp("repo") / "engines")
