"""Make what a plan lacks: convert, write tokenizers, build engines, each published whole."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.backends.interfaces import LoadingBackend
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.heads.combine import convert_with_heads
from toolkit.checkpoint.heads.head import HeadSpec, head_of
from toolkit.checkpoint.heads.source import open_head_files, open_heads
from toolkit.checkpoint.model_tokenizer import open_tokenizer_files
from toolkit.checkpoint.ready import copy_ready, open_ready
from toolkit.checkpoint.source import fetched_hashes, kind_of, open_source
from toolkit.checkpoint.tokenizer import write_tokenizer
from toolkit.engine.built import BuiltModels
from toolkit.engine.near_miss import differences, said
from toolkit.errors import InputError, RunError
from toolkit.graph.local import OneByOne, SideBySide
from toolkit.graph.run import Ran, Workers, run
from toolkit.plan import Artefact, Plan, make_plan
from toolkit.recipe.schema import ModelSpec, Recipe
from toolkit.registry import BACKENDS
from toolkit.steps import artefact_of, build_graph
from toolkit.store import Entry, Store, new_directory, write_atomic

LAST = "last.json"


@dataclass(frozen=True)
class Made:
    """An artefact that is in the store now, and what it took to get it there."""

    artefact: Artefact
    entry: Entry
    seconds: float
    bytes: int
    ran: Ran | None = None  # where and when; None: it was there before anything ran


def build(
    plan: Plan,
    store: Store,
    *,
    offline: bool | None = None,
    jobs: int = 1,
    report: Callable[[Made], None] = lambda made: None,
) -> BuiltModels:
    """Publish every artefact that is missing; `report` is called as each becomes available."""
    return build_all([plan], store, offline=offline, jobs=jobs, report=report)[0]


def build_all(
    plans: Sequence[Plan],
    store: Store,
    *,
    offline: bool | None = None,
    jobs: int = 1,
    report: Callable[[Made], None] = lambda made: None,
) -> list[BuiltModels]:
    """The same for several recipes: what they have in common is made once."""
    for plan in plans:
        BACKENDS[plan.recipe.backend].require(plan.recipe)
    plans = [fetch(plan, store, offline=offline) for plan in plans]
    workers = OneByOne() if jobs == 1 else SideBySide(jobs)
    return run_builds(plans, store, workers, offline=offline, report=report)


def run_builds(
    plans: Sequence[Plan],
    store: Store,
    workers: Workers,
    *,
    offline: bool | None = None,
    report: Callable[[Made], None] = lambda made: None,
    seconds: Callable[[Artefact], float] = lambda artefact: 1.0,
    everywhere: Mapping[str, str] | None = None,
    bring: bool = True,
) -> list[BuiltModels]:
    """Every artefact of plans whose digests are known, each once, by whatever workers there are.

    `bring`: have engines and tokenizers here afterwards, not only in a store that is elsewhere.
    """
    graph, artefacts = build_graph(
        plans, store, offline=offline, seconds=seconds, everywhere=everywhere
    )
    for step in graph:
        if step.done:
            store.share(*step.outputs[0].split("/"))
            report(_made(artefacts[step.id], {"cached": True, "seconds": 0.0}, store))
    run(
        graph,
        workers,
        title="building",
        report=lambda ran: report(_made(artefacts[ran.step.id], ran.result, store, ran)),
    )
    built = [_built(plan, store, bring=bring) for plan in plans]
    for models in built:
        write_atomic(store.root / LAST, models.to_json() + "\n")
    return built


def fetch(
    plan: Plan,
    store: Store,
    *,
    offline: bool | None = None,
    machine: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan with every digest known: sources that only the network could name are fetched."""
    backend = BACKENDS[plan.recipe.backend]
    if issubclass(backend, LoadingBackend):
        if not plan.complete:
            backend.fetch(plan.recipe, offline=offline)
    else:
        _fetch_sources(plan, store, offline)
    plan = plan if plan.complete else make_plan(plan.recipe, store, machine)
    for artefact in plan.artefacts:
        if artefact.digest is None:
            raise InputError(
                f"{artefact.model.checkpoint}: cannot tell which version this is; "
                "pin it with `revision`"
            )
    return plan


def _fetch_sources(plan: Plan, store: Store, offline: bool | None) -> None:
    missing = [a for a in plan.artefacts if a.digest is None]
    heads = [a.model for a in missing if a.roles == ("heads",)]
    for model in heads:
        open_head_files(model.checkpoint, model.revision, offline=offline)
    for model in dict.fromkeys(a.model for a in missing if a.model not in heads):
        if kind_of(model.checkpoint) != "ready":
            open_source(model.checkpoint, model.revision, store=store, offline=offline)
    for model in dict.fromkeys(a.model for a in missing if a.kind == "tokenizers"):
        if model.tokenizer is not None:
            open_tokenizer_files(model, store, offline=offline)
    for artefact in plan.artefacts:
        if artefact.digest is None and artefact.heads:
            open_heads(artefact.heads, offline=offline)


def last_built(store: Store) -> BuiltModels | None:
    """What the latest successful build in this store left behind."""
    path = store.root / LAST
    return BuiltModels.from_json(path.read_text(encoding="utf-8")) if path.is_file() else None


def convert_model(
    model: ModelSpec,
    out: Path,
    store: Store,
    *,
    offline: bool | None = None,
    tokenizer_only: bool = False,
) -> None:
    """One checkpoint (or its tokenizer) into a directory that appears whole or not at all."""
    if tokenizer_only and kind_of(model.checkpoint) in ("directory", "hub"):
        # The small files alone: a tokenizer's directory may have no weights.
        model = model.model_copy(update={"tokenizer": model.tokenizer or model.checkpoint})
    with new_directory(out) as staging:
        _write(model, staging, store, offline, tokenizer=tokenizer_only)


def convert_recipe(recipe: Recipe, out: Path, store: Store, *, offline: bool | None = None) -> None:
    """Every model of a recipe: `checkpoints/ROLE` and `tokenizers/ROLE` below `out`."""
    if issubclass(BACKENDS[recipe.backend], LoadingBackend):
        raise InputError(
            f"backend {recipe.backend!r} loads checkpoints as they are, nothing is converted; use "
            "spectool build"
        )
    with new_directory(out) as staging:
        for role, model in recipe.models().items():
            heads = head_of(recipe) if role == "target" else None
            for kind in ("tokenizers", "checkpoints"):
                area = staging / kind / role
                area.mkdir(parents=True)
                _write(model, area, store, offline, heads, tokenizer=kind == "tokenizers")


def make_artefact(work: Mapping[str, Any]) -> dict[str, Any]:
    """The step: one artefact, from the store or into it, on any machine that sees the store.

    `work` is a document of `steps.artefact_work`. Needs its inputs in the store, nothing else.
    """
    sys.argv = list(work["argv"])  # of the command that wanted it, for the manifest
    artefact, recipe, store = artefact_of(work)
    assert artefact.spec is not None
    _require_machine(artefact, recipe)
    started = time.monotonic()
    offline = work["offline"]
    entry = store.publish(
        artefact.kind,
        artefact.spec,
        lambda out: _fill(artefact, recipe, store, offline, out),
        lambda: _inputs(artefact, store),
    )
    seconds = 0.0 if entry.cached else time.monotonic() - started
    return {"cached": entry.cached, "seconds": seconds}


def _require_machine(artefact: Artefact, recipe: Recipe) -> None:
    """Refuse to put under a digest what another machine than the digest says would build."""
    spec, machine = artefact.spec or {}, BACKENDS[recipe.backend].machine()
    if artefact.kind == "engines" and (changed := differences(machine, _part(spec, machine))):
        raise RunError(
            f"{artefact.role} engine: this machine is not the one that was planned for: "
            f"{said(changed)}"
        )


def _part(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    return {name: spec[name] for name in machine if name in spec}


def _made(
    artefact: Artefact, result: Mapping[str, Any], store: Store, ran: Ran | None = None
) -> Made:
    key = str(artefact.digest)
    entry = Entry(artefact.kind, key, store.path(artefact.kind, key), cached=result["cached"])
    files = store.manifest(artefact.kind, key)["files"]
    size = sum(int(file["bytes"]) for file in files.values())
    return Made(artefact, entry, result["seconds"], size, ran)


def _inputs(artefact: Artefact, store: Store) -> dict[str, Any]:
    """Digests of what it was made from, also where its spec has a version instead."""
    fetched = {} if artefact.kind == "engines" else fetched_hashes(artefact.model.checkpoint, store)
    return {"artefacts": list(artefact.inputs), "fetched": fetched}


def _fill(
    artefact: Artefact, recipe: Recipe, store: Store, offline: bool | None, out: Path
) -> None:
    model, backend = artefact.model, BACKENDS[recipe.backend]
    if issubclass(backend, LoadingBackend):
        _fill_loaded(artefact, backend, recipe, store, offline, out)
        return
    if artefact.kind == "engines":
        checkpoint = store.fetch("checkpoints", artefact.inputs[0])
        backend.build_engine(checkpoint, out, recipe, artefact.roles[0], store)
        return
    tokenizer = artefact.kind == "tokenizers"
    _write(model, out, store, offline, artefact.heads, tokenizer=tokenizer)


def _fill_loaded(
    artefact: Artefact,
    backend: type[LoadingBackend],
    recipe: Recipe,
    store: Store,
    offline: bool | None,
    out: Path,
) -> None:
    if artefact.kind == "engines":
        draft = store.fetch("checkpoints", artefact.inputs[0]) if artefact.inputs else None
        backend.write_deployment(recipe, draft, out)
    elif artefact.kind == "tokenizers":
        backend.write_tokenizer(recipe, out)
    else:
        backend.write_draft(recipe, out, offline=offline)


def _write(
    model: ModelSpec,
    out: Path,
    store: Store,
    offline: bool | None,
    heads: HeadSpec | None = None,
    *,
    tokenizer: bool,
) -> None:
    """A model's checkpoint or its tokenizer into `out`."""
    if tokenizer:
        write_tokenizer(open_tokenizer_files(model, store, offline=offline), out)
        return
    if kind_of(model.checkpoint) == "ready":
        copy_ready(open_ready(model, heads=heads.kind if heads else None), out)
        return
    source = open_source(model.checkpoint, model.revision, store=store, offline=offline)
    if heads:
        convert_with_heads(source, open_heads(heads, offline=offline), out, model, heads)
    else:
        convert(source, out, model)


def _built(plan: Plan, store: Store, *, bring: bool) -> BuiltModels:
    place = store.fetch if bring else store.path

    def directories(kind: str) -> dict[str, Path]:
        return {
            role: place(kind, str(artefact.digest))
            for artefact in plan.artefacts
            if artefact.kind == kind
            for role in artefact.roles
        }

    return BuiltModels(plan.recipe, directories("engines"), directories("tokenizers"))
