"""What TensorRT-LLM refuses after an hour, or builds and cannot use, refused before the build.

Each rule looks at one engine and yields where the recipe says it and what would do. A rule that
needs the checkpoint's config.json is silent until it is known: the recipe alone is checked when it
is loaded, the checkpoint when it is opened and again when it is about to be built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.engine.trtllm.case import Case, Problem
from toolkit.engine.trtllm.command import RESERVED, allowed, drafter_flags, release_of
from toolkit.engine.trtllm.flag_rules import FLAG_RULES
from toolkit.engine.trtllm.flags import flag_problems, release_problem
from toolkit.engine.trtllm.gpus import ARCHITECTURES, architecture
from toolkit.engine.trtllm.model_rules import MODEL_RULES
from toolkit.engine.trtllm.placement import serve_problems
from toolkit.errors import did_you_mean
from toolkit.recipe.release import release
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS


def recipe_problems(recipe: Recipe) -> list[Problem]:
    """Everything wrong that the recipe alone shows, once."""
    return list(dict.fromkeys(_recipe_problems(recipe)))


def model_problems(
    recipe: Recipe, configs: Mapping[str, Mapping[str, Any]], *, sm: int | None = None
) -> list[Problem]:
    """What the models' config.json files show (role -> what `convert` would write)."""
    found = [
        problem
        for role, config in configs.items()
        for problem in engine_problems(recipe, role, config, sm=sm)
    ]
    drafter = DRAFTERS[recipe.speculation.drafter]
    return list(dict.fromkeys([*found, *drafter.pair_problems(recipe, configs)]))


def _recipe_problems(recipe: Recipe) -> Iterator[Problem]:
    if problem := release_problem(release(recipe.tensorrt_llm), recipe.tensorrt_llm):
        yield ("tensorrt_llm",), problem
        return  # every other rule depends on it
    yield from _wrong_flags(recipe)
    gpu = recipe.tensorrt.gpu
    if gpu is not None and architecture(gpu) is None:
        hint = did_you_mean(gpu, ARCHITECTURES)
        yield (
            ("tensorrt", "gpu"),
            f"unknown GPU {gpu!r}{hint} (or write its architecture, like sm_90)",
        )
    yield from DRAFTERS[recipe.speculation.drafter].tensorrt_problems(recipe)
    yield from serve_problems(recipe)
    for role in recipe.models():
        yield from engine_problems(recipe, role)


def engine_problems(
    recipe: Recipe,
    role: str,
    pretrained: Mapping[str, Any] | None = None,
    *,
    final: bool = False,
    sm: int | None = None,
) -> Iterator[Problem]:
    """Everything wrong with one engine, as far as its checkpoint and GPU are known."""
    gpu = recipe.tensorrt.gpu
    sm = sm or (architecture(gpu) if gpu else None)
    case = Case(recipe, role, pretrained or {}, final, sm)
    for rule in (*FLAG_RULES, *MODEL_RULES):
        yield from rule(case)


def _wrong_flags(recipe: Recipe) -> Iterator[Problem]:
    given = recipe.tensorrt.flags
    for name in given:
        if name in RESERVED:
            yield ("tensorrt", "flags", name), f"cannot be set here: {RESERVED[name]}"
    for name, problem in flag_problems(allowed(given), release_of(recipe)):
        yield ("tensorrt", "flags", name), problem
    for role in recipe.models():
        for name, needed in drafter_flags(recipe, role).items():
            if name in allowed(given) and given[name] != needed:
                yield (
                    ("tensorrt", "flags", name),
                    f"{given[name]!r}, but drafter {recipe.speculation.drafter!r} needs {needed!r} "
                    "in every engine; remove it",
                )
