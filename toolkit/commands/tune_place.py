"""Where `spectool tune` measures: in this process, or spread over the nodes of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from toolkit.checkpoint.tokenizer import Tokenizer
    from toolkit.engine.built import BuiltModels
    from toolkit.execute import Made
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
    tracing: Tracing


@contextmanager
def place_of(
    on: str | None,
    original: Recipe,
    found: Recipe,  # with the command line's options in its tune section
    store: Store,
    *,
    offline: bool | None,
    threads: int | None,
) -> Iterator[Place]:
    """Built as the recipe stands: what a run measures is no business of the next command."""
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
    from toolkit.tuning.session import identify, measure
    from toolkit.tuning.setup import conditions, for_every_k, warm_up_prompt
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
        return measure(
            loop,
            grid,
            conditions(found, frozenset(tokenizer.eos_ids)),
            journal,
            warm_up_prompt=warm_up_prompt(tokenizer),
            log=log,
        )

    tracing = TracingHere(found, runtime, store)
    return Place(built, identify(built, threads=threads), tokenizer, rounds, tracing)


def log(line: str) -> None:
    """One line per round where nobody sees a bar."""
    if not sys.stderr.isatty():
        say(line)


def say(line: str) -> None:
    typer.echo(line, err=True)


def _built(made: Made) -> None:
    if not made.entry.cached:
        say(f"built {made.artefact.kind}/{made.entry.digest}")
