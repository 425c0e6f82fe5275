"""From plans to the graph of steps that carries them out: common artefacts once, needs of each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.backends.interfaces import LoadingBackend
from toolkit.checkpoint.heads.head import head_of
from toolkit.checkpoint.source import kind_of
from toolkit.graph.step import Graph, Needs, Step
from toolkit.plan import Artefact, Plan
from toolkit.recipe.schema import ModelSpec, Recipe
from toolkit.registry import BACKENDS
from toolkit.store import Store, digest, reopen_store

_TITLES = {"checkpoints": "convert", "tokenizers": "tokenizer", "engines": "engine"}
_WORK_MEMORY = 512 << 20  # bytes: interpreter, libraries, buffers
_LARGEST_TENSOR = 4 << 30  # a conversion holds about one tensor at a time


def build_graph(
    plans: Sequence[Plan],
    store: Store,
    *,
    offline: bool | None = None,
    seconds: Callable[[Artefact], float] = lambda artefact: 1.0,
    everywhere: Mapping[str, str] | None = None,
) -> tuple[Graph, dict[str, Artefact]]:
    """The steps of every plan and the artefact of each; what plans have in common is one step.

    `everywhere` are labels that each step asks of its node besides its own.
    """
    steps: dict[str, Step] = {}
    artefacts: dict[str, Artefact] = {}
    for plan in plans:
        several = f"{plan.recipe.name}: " if len(plans) > 1 else ""
        for artefact, name in zip(plan.artefacts, step_ids(plan), strict=True):
            if name in steps:
                continue
            artefacts[name] = artefact
            steps[name] = Step(
                id=name,
                kind="artefact",
                title=f"{several}{_TITLES[artefact.kind]} {artefact.role}",
                inputs=_inputs(artefact, plan),
                outputs=(f"{artefact.kind}/{artefact.digest}",) if artefact.digest else (),
                needs=needs_of(artefact, plan.recipe, everywhere or {}),
                work=artefact_work(artefact, plan.recipe, store, offline) if artefact.spec else {},
                seconds=seconds(artefact),
                done=artefact.cached,
            )
    return Graph(list(steps.values())), artefacts


def common(plans: Sequence[Plan]) -> list[Artefact]:
    """The artefacts of all plans, each once."""
    found: dict[str, Artefact] = {}
    for plan in plans:
        for artefact, name in zip(plan.artefacts, step_ids(plan), strict=True):
            found.setdefault(name, artefact)
    return list(found.values())


def step_ids(plan: Plan) -> list[str]:
    """One for each artefact: its digest, else what makes it."""
    return [f"{a.kind}/{a.digest or _unknown(a, plan)}" for a in plan.artefacts]


def _unknown(artefact: Artefact, plan: Plan) -> str:
    model = artefact.model.model_dump(mode="json")
    release = plan.recipe.tensorrt_llm
    return digest({"model": model, "command": artefact.command, "release": release})[:12] + "?"


def _inputs(artefact: Artefact, plan: Plan) -> tuple[str, ...]:
    """Steps of the same plan: the checkpoints of an engine, also where digests are not known."""
    if artefact.kind != "engines":
        return ()
    roles = set(artefact.roles)
    if issubclass(BACKENDS[plan.recipe.backend], LoadingBackend):
        roles |= {"draft"}  # one directory deploys both
    return tuple(
        name
        for found, name in zip(plan.artefacts, step_ids(plan), strict=True)
        if found.kind == "checkpoints"
        and (found.digest in artefact.inputs or roles & set(found.roles))
    )


def needs_of(artefact: Artefact, recipe: Recipe, everywhere: Mapping[str, str]) -> Needs:
    """What a machine must have to make it."""
    size, paths = weights(artefact.model)
    if artefact.kind != "engines":
        more = min(size, _LARGEST_TENSOR) if artefact.kind == "checkpoints" else 0
        return Needs(memory=_WORK_MEMORY + more, paths=paths, labels=everywhere)
    backend = BACKENDS[recipe.backend]
    if issubclass(backend, LoadingBackend):  # writes a few files; GPUs are for running it
        return Needs(memory=_WORK_MEMORY, labels=everywhere)
    spec = artefact.spec or {}
    known = {name: str(spec[name]) for name in backend.machine_keys if spec.get(name) is not None}
    return Needs(
        memory=_WORK_MEMORY + size,
        gpus=backend.gpus(recipe, artefact.roles[0]),
        labels={**everywhere, **backend.builder(recipe), **known},
    )


def weights(model: ModelSpec) -> tuple[int, tuple[str, ...]]:
    """Bytes of weights that lie on this disk, and where; (0, ()) for what is fetched."""
    if kind_of(model.checkpoint) in ("pip", "hub"):
        return 0, ()
    path = Path(model.checkpoint).expanduser().absolute()
    files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.bin")]
    places = [path, *(Path(name).absolute() for name in [model.tokenizer] if name)]
    return sum(file.stat().st_size for file in files), tuple(
        str(place) for place in places if place.exists()
    )


def artefact_work(
    artefact: Artefact, recipe: Recipe, store: Store, offline: bool | None
) -> dict[str, Any]:
    """The document that `execute.make_artefact` makes it from, in any process."""
    return {
        "recipe": recipe.model_dump(mode="json"),
        "kind": artefact.kind,
        "roles": list(artefact.roles),
        "model": _pinned(artefact).model_dump(mode="json"),
        "spec": artefact.spec,
        "digest": artefact.digest,
        "inputs": list(artefact.inputs),
        "store": str(store.root),
        "shared": store.url,
        "offline": offline,
        "argv": list(sys.argv),
    }


def _pinned(artefact: Artefact) -> ModelSpec:
    """The model at the commit that the digest is of, wherever and whenever it is fetched."""
    model, source = artefact.model, (artefact.spec or {}).get("source")
    commit = source.get("commit") if isinstance(source, dict) else None
    if commit is None or (artefact.kind == "tokenizers" and model.tokenizer):
        return model
    return model.model_copy(update={"revision": commit})


def artefact_of(work: Mapping[str, Any]) -> tuple[Artefact, Recipe, Store]:
    """The inverse of `artefact_work`."""
    recipe = Recipe.model_validate(work["recipe"])
    store = reopen_store(Path(work["store"]), work["shared"])
    heads = work["kind"] == "checkpoints" and "heads" in work["spec"]
    artefact = Artefact(
        kind=work["kind"],
        roles=tuple(work["roles"]),
        model=ModelSpec.model_validate(work["model"]),
        spec=dict(work["spec"]),
        digest=work["digest"],
        inputs=tuple(work["inputs"]),
        command="",
        path=store.path(work["kind"], work["digest"]),
        cached=False,
        heads=head_of(recipe) if heads else None,
    )
    return artefact, recipe, store
