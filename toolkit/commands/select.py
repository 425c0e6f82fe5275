"""`spectool select`: which draft suits a target, from one reading of its own outputs each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.options import (
    Json,
    Offline,
    Overrides,
    RecipeArgument,
    StoreDir,
    Threads,
    offline_or_environment,
)

if TYPE_CHECKING:
    from toolkit.backends.runtime import Runtime
    from toolkit.engine.built import BuiltModels
    from toolkit.measure.step_times import StepTimes
    from toolkit.recipe.schema import Recipe
    from toolkit.store import Store
    from toolkit.tuning.candidates import Candidate
    from toolkit.tuning.grid import Grid
    from toolkit.tuning.select import Assessed, Memory
    from toolkit.tuning.trace_mode import Traced


def select(
    recipe: RecipeArgument,
    drafts: Annotated[
        list[str] | None,
        typer.Option(
            "--draft",
            metavar="CANDIDATE",
            help="ngram; a checkpoint; target@layers=0,1,29; draft@w8a16; eagle3:HEAD; or a "
            "recipe.yaml. Repeatable; the recipe's own drafter takes part anyway.",
        ),
    ] = None,
    k: Annotated[str | None, typer.Option("--k", metavar="1..8", help="Draft lengths.")] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="1,4", help="Batch sizes.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Output tokens of one request.")
    ] = None,
    prompts_per_domain: Annotated[
        int | None, typer.Option("--prompts-per-domain", help="Use only the first N prompts.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="0 (default) is greedy.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of orders and sampling.")] = None,
    threads: Threads = None,
    override: Overrides = None,
    store: StoreDir = None,
    on: Annotated[str | None, typer.Option("--on", hidden=True)] = None,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Rank drafts for the recipe's target by the TPOT that each would bring.

    The target writes its answers once; every candidate reads them once and is timed for its drafts
    alone. For each batch size: acceptance, what drafting costs beside a step of the target, memory,
    and the acceptance at which it would break even, which says what retraining could gain.
    """
    from toolkit.errors import InputError
    from toolkit.measure.prompts import load_prompt_sets
    from toolkit.recipe.load import load_recipe
    from toolkit.registry import BACKENDS
    from toolkit.store import open_store
    from toolkit.tuning.candidates import candidates
    from toolkit.tuning.select import document
    from toolkit.tuning.setup import check, with_options

    if on is not None:
        raise InputError(
            "select holds every candidate against one table of one target's step times, so it "
            "runs on this machine alone; leave --on out (tune --on ray measures one "
            "candidate on a cluster)"
        )
    options = {
        "k": k,
        "batch": batch,
        "max_tokens": max_tokens,
        "prompts_per_domain": prompts_per_domain,
        "sampling.temperature": temperature,
        "sampling.seed": seed,
    }
    found = with_options(load_recipe(recipe, override or []), options)
    if not BACKENDS[found.backend].shows_logits:
        raise InputError(
            f"backend {found.backend!r} loads engines whole, and select puts every candidate "
            "beside one loaded target; rank them on backend cpu, or tune them one by one"
        )
    listed = candidates(found, drafts or [])
    sets = load_prompt_sets(found.tune.prompts, limit=found.tune.prompts_per_domain)
    for candidate in listed:
        check(candidate.recipe, sets)
    where = open_store(store)
    built = [_build(each.recipe, where, offline_or_environment(offline)) for each in listed]
    assessed = _Work(sets, where, threads).run(listed, built)
    if as_json:
        settings = found.tune.model_dump(mode="json")
        print(json.dumps(document(assessed, settings), allow_nan=False))
    else:
        for size in sorted(found.tune.batch):
            print(_table(assessed, size), end="\n\n")


def _build(recipe: Recipe, store: Store, offline: bool | None) -> BuiltModels:
    from toolkit.execute import build
    from toolkit.plan import make_plan

    return build(make_plan(recipe, store), store, offline=offline)


@dataclass
class _Work:
    """One target, loaded once, and one candidate beside it at a time."""

    sets: Sequence[Any]
    store: Store
    threads: int | None

    def run(self, listed: Sequence[Candidate], built: Sequence[BuiltModels]) -> list[Assessed]:
        from toolkit.backends.runtime import open_beside, open_runtime
        from toolkit.tuning.setup import for_every_k, make_grid

        found: list[Assessed] = []
        first: Runtime | None = None
        table: StepTimes | None = None
        for candidate, models in zip(listed, built, strict=True):
            typer.echo(f"candidate {candidate.name}", err=True)
            ready = replace(models, recipe=for_every_k(candidate.recipe))
            if first is None:
                runtime = first = open_runtime(ready, threads=self.threads)
            else:
                runtime = open_beside(ready, first, built[0].engines, threads=self.threads)
            grid = make_grid(candidate.recipe, self.sets, runtime.tokenizer)
            traced = self._trace(candidate.recipe, grid, runtime, models)
            shared = table if runtime.target is first.target else None
            times = _times(grid, runtime, traced, candidate.recipe, shared)
            table = table or times
            memory = _memory(models, built[0], runtime)
            found.append(_assess(candidate, grid, traced, times, memory))
        return found

    def _trace(self, recipe: Recipe, grid: Grid, runtime: Runtime, models: BuiltModels) -> Traced:
        from toolkit.tuning.session import identify
        from toolkit.tuning.trace_mode import trace

        identity = identify(models, threads=self.threads)
        engine = {
            "engine": identity["engines"]["target"],
            "tokenizer": identity["tokenizer"],
            "backend": identity["backend"],
        }
        return trace(recipe, grid, runtime, engine, self.store, None)


def _times(
    grid: Grid, runtime: Runtime, traced: Traced, recipe: Recipe, shared: StepTimes | None
) -> StepTimes:
    """The whole table for the first candidate; only the drafts' times where it can be shared."""
    from toolkit.tuning.trace_mode import draft_times, whole_table

    if shared is None:
        return whole_table(grid, runtime, recipe.tune.sampling, traced)
    return shared.drafting_as(draft_times(grid, runtime, recipe.tune.sampling, traced))


def _assess(
    candidate: Candidate, grid: Grid, traced: Traced, times: StepTimes, memory: Memory
) -> Assessed:
    from toolkit.tuning.select import assess

    tune = candidate.recipe.tune
    return assess(
        candidate.name, candidate.recipe.speculation.drafter, traced.traces, times, grid, memory,
        max_tokens=tune.max_tokens, objective=tune.objective,
    )  # fmt: skip


def _memory(models: BuiltModels, base: BuiltModels, runtime: Runtime) -> Memory:
    """Beyond the target as the first candidate has it: heads inside it count as well."""
    from toolkit.tuning.select import Memory

    def size(path: Path) -> int:
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

    weights = sum(map(size, models.engines.values())) - size(base.engines["target"])
    kv = sum(
        getattr(model, "kv_bytes_per_token", 0)
        for role, model in runtime.models.items()
        if role != "target"
    )
    return Memory(max(0, weights), kv)


def _table(found: Sequence[Assessed], batch: int) -> str:
    from toolkit.commands.table import size, table
    from toolkit.tuning.select import at_batch

    rows = [
        (
            candidate.name,
            candidate.drafter,
            str(point.k),
            f"{point.tpot_ns / 1e6:.2f}",
            f"{point.gain:.2f}x",
            _share(point.acceptance_rate),
            "-" if point.acceptance_length is None else f"{point.acceptance_length:.2f}",
            f"{point.cost_ratio:.2f}",
            _share(point.break_even_acceptance),
            f"{point.ceiling_speedup:.2f}x",
            size(candidate.memory.weights),
        )
        for candidate, point in at_batch(found, batch)
    ]
    heads = (
        "candidate", "drafter", "k", "TPOT ms", "speed-up", "accepted", "length", "cost",
        "break-even", "ceiling", "weights",
    )  # fmt: skip
    plain = at_batch(found, batch)[0][1].plain_tpot_ns / 1e6
    return f"batch size {batch}, predicted; plain decoding: {plain:.2f} ms a token\n" + table(
        rows, heads, "llrrrrrrrrr"
    )


def _share(value: float | None) -> str:
    return "never" if value is None else f"{value:.0%}"
