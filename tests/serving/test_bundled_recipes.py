"""Every bundled recipe in every placement that it can have: written, parsed, linted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.llmapi.deployments import deployed
from tests.serving.trt_engines import trt_built
from toolkit.bundled import bundled
from toolkit.engine.built import BuiltModels
from toolkit.engine.trtllm.placement import placement
from toolkit.errors import RecipeError
from toolkit.recipe.load import load_recipe
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.serving.lint import lint
from toolkit.serving.pbtxt import parse
from toolkit.serving.repository import write_repository

RECIPES = sorted(bundled("recipes").rglob("*.yaml"))


def placements(recipe: Recipe) -> Iterator[tuple[str, list[str]]]:
    """Name -> what --set says."""
    ranks = recipe.target.parallel.tp * recipe.target.parallel.pp
    yield "as it stands", []
    if recipe.backend == "cpu":
        yield "bls", ["serve.layout=bls"]
        yield "inprocess", ["serve.layout=inprocess"]
    elif recipe.backend == "pytorch":
        two = [list(range(ranks)), list(range(ranks, 2 * ranks))]
        yield "two instances", [f"serve.pytorch.gpus={two}"]
        if ranks % 2 == 0:
            yield "two machines", ["serve.pytorch.nodes=2"]
        yield "not decoupled", ["serve.pytorch.decoupled=false"]
    else:
        twice = f"target.parallel.tp={2 * recipe.target.parallel.tp}"
        yield "twice the ranks", [twice]
        yield "participants", ["serve.tensorrt.processes=participants"]
        yield "spawn", ["serve.tensorrt.processes=spawn"]
        if len(recipe.models()) == 2:
            yield "separate GPUs", ["serve.tensorrt.placement=separate"]
            yield (
                "draft on as many ranks",
                [
                    twice,
                    f"speculation.draft.parallel.tp={2 * recipe.target.parallel.tp}",
                    "serve.tensorrt.placement=separate",
                    "serve.tensorrt.processes=participants",
                ],
            )


CASES = [
    pytest.param(path, words, id=f"{path.parent.name}-{path.stem}-{name}".replace(" ", "_"))
    for path in RECIPES
    for name, words in placements(load_recipe(str(path)))
]


def models(recipe: Recipe, built: BuiltModels, directory: Path) -> BuiltModels:
    """What a build would leave behind, as far as a repository looks at it."""
    if recipe.backend == "tensorrt":
        return trt_built(directory, recipe)
    if recipe.backend == "pytorch":
        draft = DRAFTERS[recipe.speculation.drafter].llmapi_draft(recipe.speculation)
        return deployed(recipe, directory, draft=bool(draft and draft.kind == "eagle3"))
    roles = list(recipe.models())
    fitted = recipe.model_copy(update={"engine": built.recipe.engine})
    return BuiltModels(
        fitted,
        {role: built.engines[role] for role in roles},
        {role: built.tokenizers[role] for role in roles},
    )


@pytest.mark.parametrize(("path", "words"), CASES)
def test_the_repository_is_written_and_lints_clean(path, words, built, tmp_path):
    try:
        recipe = load_recipe(str(path), words)
    except RecipeError as error:
        # A rule of the recipe, not of the repository: pipeline-parallel drafts, for instance.
        pytest.skip(f"not a placement of this recipe: {error.problems[0]}")
    made = models(recipe, built, tmp_path / "built")
    repository = write_repository(made, tmp_path / "repo")
    configs = sorted(repository.glob("*/config.pbtxt"))
    assert configs
    for config in configs:
        assert parse(config.read_text()).name == config.parent.name
    assert [str(finding) for finding in lint(repository)] == []
    if recipe.backend != "cpu":
        assert world_size((repository / "launch.sh").read_text()) == wanted_size(recipe)


def world_size(script: str) -> int:
    """Processes that the launch script starts."""
    if "srun" in script:
        words: dict[str, Any] = dict(
            word.split("=", 1) for word in script.split() if word.startswith("--ntasks=")
        )
        return int(words["--ntasks"])
    return script.count("/opt/tritonserver/bin/tritonserver")


def wanted_size(recipe: Recipe) -> int:
    """By hand: leader has a rank for each GPU, participants one more, spawn one alone."""
    parallel = recipe.target.parallel
    if recipe.backend == "pytorch":
        return parallel.tp * parallel.pp if recipe.serve.pytorch.nodes > 1 else 1
    ranks = sum(m.parallel.tp * m.parallel.pp for m in recipe.models().values())
    kind = placement(recipe).processes
    return {"leader": ranks, "participants": 1 + ranks, "spawn": 1}[kind]
