"""Rules for BLS models: the models that they call by name are there and play their parts."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import ValidationError

from toolkit.errors import did_you_mean
from toolkit.recipe.schema import ModelSpec
from toolkit.registry import DRAFTERS
from toolkit.serving.lint.repository import Finding, Model, Repository

# Whether a drafter needs a model is its own affair; the target decides what that is made of.
_ANY_TARGET = ModelSpec(checkpoint="target")
_NAMES = {"tensorrt_llm_model_name": "target", "tensorrt_llm_draft_model_name": "draft"}


def check_bls(repository: Repository) -> Iterator[Finding]:
    for model in repository.parsed:
        if "tensorrt_llm_model_name" in model.parameters:
            yield from _check_names(model, repository)
            if model.ours:
                yield from _check_speculation(model)


def _check_names(bls: Model, repository: Repository) -> Iterator[Finding]:
    if "preprocessing" not in repository.models:
        yield bls.error(f"it asks preprocessing for tokens: {repository.unknown('preprocessing')}")
    called: dict[str, str] = {}
    for parameter, role in _NAMES.items():
        name = bls.parameters.get(parameter)
        if name is None:
            continue
        if name not in repository.models:
            yield bls.error(f"parameter {parameter!r}: {repository.unknown(name)}", name)
            continue
        if name in called:
            yield bls.error(f"{name!r} is both {called[name]} and {role}", name)
        called[name] = role
        yield from _check_role(bls, repository.models[name], role)


def _check_role(bls: Model, model: Model | None, role: str) -> Iterator[Finding]:
    if model is None or not model.ours:
        return
    found = model.parameters.get("role")
    if found and found != role:
        # A draft that draws with the target's numbers would bias what is accepted.
        yield model.error(f"parameter 'role': {found!r}, but {bls.name} uses it as {role}", "role")


def _check_speculation(bls: Model) -> Iterator[Finding]:
    try:
        options = json.loads(bls.parameters.get("speculation", ""))
        name = options["drafter"]
    except (ValueError, KeyError, TypeError):
        if "speculation" in bls.parameters:
            yield bls.error("parameter 'speculation': no drafter in it", "speculation")
        return
    if name not in DRAFTERS:
        hint = did_you_mean(str(name), DRAFTERS)
        yield bls.error(f"parameter 'speculation': no drafter {name!r}{hint}", "speculation")
        return
    drafter = DRAFTERS[name]
    try:
        parsed = drafter.Options.model_validate(options)
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"])
            yield bls.error(f"parameter 'speculation': {where}: {problem['msg']}", "speculation")
        return
    wants = bool(drafter.models(parsed, _ANY_TARGET))
    has = "tensorrt_llm_draft_model_name" in bls.parameters
    if wants and not has:
        yield bls.error(f"drafter {name} needs parameter 'tensorrt_llm_draft_model_name'")
    if has and not wants:
        yield bls.warning(f"drafter {name} drafts by itself: the draft model would not be used")
