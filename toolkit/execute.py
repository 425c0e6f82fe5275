"""Make what a plan lacks: convert, write tokenizers, build engines, each published whole."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from toolkit.backends.interfaces import LoadingBackend
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.heads.combine import convert_with_heads
from toolkit.checkpoint.heads.head import HeadSpec, head_of
from toolkit.checkpoint.heads.source import open_heads
from toolkit.checkpoint.model_tokenizer import open_tokenizer_files
from toolkit.checkpoint.ready import copy_ready, open_ready
from toolkit.checkpoint.source import fetched_hashes, kind_of, open_source
from toolkit.checkpoint.tokenizer import write_tokenizer
from toolkit.engine.built import BuiltModels
from toolkit.errors import InputError
from toolkit.plan import Artefact, Plan, make_plan
from toolkit.recipe.schema import ModelSpec, Recipe
from toolkit.registry import BACKENDS
from toolkit.store import Entry, Store, new_directory, read_manifest, write_atomic

LAST = "last.json"


@dataclass(frozen=True)
class Made:
    """An artefact that is in the store now, and what it took to get it there."""

    artefact: Artefact
    entry: Entry
    seconds: float
    bytes: int


def build(
    plan: Plan,
    store: Store,
    *,
    offline: bool | None = None,
    jobs: int = 1,
    report: Callable[[Made], None] = lambda made: None,
) -> BuiltModels:
    """Publish every artefact that is missing; `report` is called as each becomes available."""
    BACKENDS[plan.recipe.backend].require(plan.recipe)
    plan = fetch(plan, store, offline=offline)
    run = _one_by_one if jobs == 1 else _side_by_side
    for made in run(plan, store, offline, jobs):
        report(made)
    built = _built(plan, store)
    write_atomic(store.root / LAST, built.to_json() + "\n")
    return built


def fetch(plan: Plan, store: Store, *, offline: bool | None = None) -> Plan:
    """The plan with every digest known: sources that only the network could name are fetched."""
    backend = BACKENDS[plan.recipe.backend]
    if issubclass(backend, LoadingBackend):
        if not plan.complete:
            backend.fetch(plan.recipe, offline=offline)
    else:
        _fetch_sources(plan, store, offline)
    plan = plan if plan.complete else make_plan(plan.recipe, store)
    for artefact in plan.artefacts:
        if artefact.digest is None:
            raise InputError(
                f"{artefact.model.checkpoint}: cannot tell which version this is; "
                "pin it with `revision`"
            )
    return plan


def _fetch_sources(plan: Plan, store: Store, offline: bool | None) -> None:
    missing = [a for a in plan.artefacts if a.digest is None]
    for model in dict.fromkeys(a.model for a in missing):
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


def make(artefact: Artefact, recipe: Recipe, store: Store, offline: bool | None) -> Made:
    """One artefact, from the store or into it. Needs its inputs there, nothing else."""
    if artefact.spec is None:
        raise InputError(f"{artefact.model.checkpoint}: not fetched yet")
    started = time.monotonic()
    entry = store.publish(
        artefact.kind,
        artefact.spec,
        lambda out: _fill(artefact, recipe, store, offline, out),
        lambda: _inputs(artefact, store),
    )
    seconds = 0.0 if entry.cached else time.monotonic() - started
    size = sum(int(file["bytes"]) for file in read_manifest(entry.path)["files"].values())
    return Made(artefact, entry, seconds, size)


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
        checkpoint = store.path("checkpoints", artefact.inputs[0])
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
        draft = store.path("checkpoints", artefact.inputs[0]) if artefact.inputs else None
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


def _one_by_one(plan: Plan, store: Store, offline: bool | None, jobs: int) -> Iterator[Made]:
    for artefact in plan.artefacts:
        yield make(artefact, plan.recipe, store, offline)


def _side_by_side(plan: Plan, store: Store, offline: bool | None, jobs: int) -> Iterator[Made]:
    """In processes, so that Ctrl-C ends a conversion as fast as it ends us."""
    waiting = list(plan.artefacts)
    running: set[Future[Made]] = set()
    ready: set[str] = set()
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_on_interrupt)
    try:
        while waiting or running:
            for artefact in [a for a in waiting if ready.issuperset(a.inputs)]:
                waiting.remove(artefact)
                with _interrupts_later():
                    running.add(pool.submit(make, artefact, plan.recipe, store, offline))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                made = future.result()
                ready.add(made.entry.digest)
                yield made
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back while processes start: one that is still importing would print its stack."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_on_interrupt() -> None:
    """In a worker: Ctrl-C ends it without a word, also one that came while it started."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _built(plan: Plan, store: Store) -> BuiltModels:
    def directories(kind: str) -> dict[str, Path]:
        return {
            role: store.path(kind, str(artefact.digest))
            for artefact in plan.artefacts
            if artefact.kind == kind
            for role in artefact.roles
        }

    return BuiltModels(plan.recipe, directories("engines"), directories("tokenizers"))
