"""Where `spectool tune` measures: in this process, on servers, or on the nodes of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from toolkit.checkpoint.tokenizer import Tokenizer
    from toolkit.engine.built import BuiltModels
    from toolkit.execute import Made
    from toolkit.measure.run import Loop
    from toolkit.recipe.schema import Recipe
    from toolkit.store import Store
    from toolkit.tuning.grid import Grid
    from toolkit.tuning.journal import Journal
    from toolkit.tuning.session import Outcome
    from toolkit.tuning.tracing import Tracing


@dataclass(frozen=True)
class Place:
    """The recipe's engines where they are measured."""

    built: BuiltModels
    identity: dict[str, Any]
    tokenizer: Tokenizer
    measure: Callable[[Grid, Journal], Outcome]
    tracing: Tracing | None  # None: nothing here can be traced


@contextmanager
def place_of(
    on: str | None,
    original: Recipe,
    found: Recipe,  # with the command line's options in its tune section
    store: Store,
    *,
    offline: bool | None,
    threads: int | None,
    urls: Mapping[int, str],  # draft length -> the server that has it; empty: none
) -> Iterator[Place]:
    """Built as the recipe stands: what a run measures is no business of the next command."""
    if urls:
        yield _served(urls, original, found, store, offline)
        return
    if on is None:
        yield _here(original, found, store, offline, threads)
        return
    from toolkit.checkpoint.tokenizer import load_tokenizer
    from toolkit.on_cluster import build_with, cluster_for, measured_by
    from toolkit.plan import make_plan
    from toolkit.tuning.session import identify

    plan = make_plan(original, store)
    with cluster_for(on, [plan], store, say) as session:
        built = build_with(session, [plan], store, offline=offline, report=_built)[0]
        built = replace(built, recipe=found)
        machine, measure, tracing = measured_by(session, built, store, threads=threads, log=log)
        identity = identify(built, threads=threads, where=machine)
        yield Place(built, identity, load_tokenizer(built.tokenizer_dir), measure, tracing)


def _here(
    original: Recipe, found: Recipe, store: Store, offline: bool | None, threads: int | None
) -> Place:
    from toolkit.backends.runtime import open_runtime
    from toolkit.execute import build
    from toolkit.plan import make_plan
    from toolkit.tuning.session import identify
    from toolkit.tuning.setup import for_every_k
    from toolkit.tuning.tracing import TracingHere

    built = build(make_plan(original, store), store, offline=offline, report=_built)
    built = replace(built, recipe=found)
    runtime = open_runtime(replace(built, recipe=for_every_k(found)), threads=threads)
    tokenizer = runtime.tokenizer

    def rounds(grid: Grid, journal: Journal) -> Outcome:
        loop = runtime.loop(
            draft_len=max(grid.ks),
            max_prefill_tokens=found.engine.max_num_tokens or sys.maxsize,  # a group at once
        )
        return _measured(loop, found, tokenizer, grid, journal)

    tracing = TracingHere(found, runtime, store)
    return Place(built, identify(built, threads=threads), tokenizer, rounds, tracing)


def _served(
    urls: Mapping[int, str], original: Recipe, found: Recipe, store: Store, offline: bool | None
) -> Place:
    """What is built here is the deployment's directory and the tokenizer: nothing is loaded."""
    from toolkit.backends.deployments import DeploymentsLoop, connect_deployments
    from toolkit.commands.tune_urls import without_password
    from toolkit.execute import build
    from toolkit.plan import make_plan
    from toolkit.tuning.session import identify

    built = build(make_plan(original, store), store, offline=offline, report=_built)
    built = replace(built, recipe=found)
    deployments = connect_deployments(built, urls)
    tokenizer = deployments.tokenizer

    def rounds(grid: Grid, journal: Journal) -> Outcome:
        return _measured(DeploymentsLoop(deployments.loops), found, tokenizer, grid, journal)

    where = {f"k = {k}": without_password(url) for k, url in urls.items()}
    return Place(built, identify(built, threads=None, where=where), tokenizer, rounds, None)


def _measured(
    loop: Loop, recipe: Recipe, tokenizer: Tokenizer, grid: Grid, journal: Journal
) -> Outcome:
    from toolkit.tuning.session import measure
    from toolkit.tuning.setup import conditions, warm_up_prompt

    return measure(
        loop,
        grid,
        conditions(recipe, frozenset(tokenizer.eos_ids)),
        journal,
        warm_up_prompt=warm_up_prompt(tokenizer),
        log=log,
    )


def log(line: str) -> None:
    """One line per round where nobody sees a bar."""
    if not sys.stderr.isatty():
        say(line)


def say(line: str) -> None:
    typer.echo(line, err=True)


def _built(made: Made) -> None:
    if not made.entry.cached:
        say(f"built {made.artefact.kind}/{made.entry.digest}")
