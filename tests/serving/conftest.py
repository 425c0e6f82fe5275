"""A tiny built recipe and its repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_fixtures import tiny_built
from toolkit.engine.built import BuiltModels
from toolkit.serving.repository import write_repository


def with_layout(built: BuiltModels, layout: str) -> BuiltModels:
    serve = built.recipe.serve.model_copy(update={"layout": layout})
    recipe = built.recipe.model_copy(update={"serve": serve})
    return BuiltModels(recipe, built.engines, built.tokenizers)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltModels:
    return tiny_built(tmp_path_factory.mktemp("built models"))


@pytest.fixture(scope="session")
def bls_repository(built: BuiltModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed: copy it first."""
    return write_repository(with_layout(built, "bls"), tmp_path_factory.mktemp("bls") / "repo")


@pytest.fixture(scope="session")
def inprocess_repository(built: BuiltModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed: copy it first."""
    out = tmp_path_factory.mktemp("inprocess") / "repo"
    return write_repository(with_layout(built, "inprocess"), out)
