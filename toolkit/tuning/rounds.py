"""What measures for a tuning, as steps: any process that can open the engines runs them.

A process that runs one step after the other keeps the engines open.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from toolkit.backends.runtime import Runtime, open_runtime
from toolkit.engine.built import BuiltModels
from toolkit.measure.run import Conditions, EncodedPrompt, Loop
from toolkit.recipe.schema import Recipe
from toolkit.store import Store, digest, reopen_store
from toolkit.tuning.adaptive import Pairing, challenger_of, loops_of, measure_pair
from toolkit.tuning.grid import Grid, Round, measure_round, warm_up
from toolkit.tuning.setup import conditions, for_every_k, warm_up_prompt


def models_work(built: BuiltModels, store: Store, threads: int | None) -> dict[str, Any]:
    """What `opened` needs: digests of engines."""
    return {
        "recipe": built.recipe.model_dump(mode="json"),
        "engines": {role: path.name for role, path in built.engines.items()},
        "tokenizers": {role: path.name for role, path in built.tokenizers.items()},
        "store": str(store.root),
        "shared": store.url,
        "threads": threads,
    }


def grid_work(grid: Grid) -> dict[str, Any]:
    """A grid without its prompts."""
    return {"ks": list(grid.ks), "batches": list(grid.batches), "seed": grid.seed}


def prompts_work(prompts: Sequence[EncodedPrompt]) -> list[list[Any]]:
    return [[prompt.id, list(prompt.tokens)] for prompt in prompts]


def round_work(models: Mapping[str, Any], grid: Grid, round: Round) -> dict[str, Any]:
    """What `measure` needs: the engines, the grid, and one round."""
    return {
        "models": dict(models),
        "grid": grid_work(grid),
        "domain": round.domain,
        "prompts": prompts_work(round.prompts),
        "lengths": list(grid.lengths(round.batch_size)),
    }


def pair_work(models: Mapping[str, Any], grid: Grid, pairing: Pairing) -> dict[str, Any]:
    """What `measure_contest` needs: a round, and the two that meet in it."""
    return {
        **round_work(models, grid, pairing.round),
        "challenger": pairing.challenger.to_json(),
        "fixed": pairing.fixed,
    }


def measure(work: Mapping[str, Any]) -> dict[str, Any]:
    """The step: every draft length over the round's prompts, in the order that the grid says."""
    bench = _bench(work)
    grid = replace(bench.grid, ks=tuple(work["lengths"]))
    runs = measure_round(bench.loop, grid, _round(work), bench.conditions, perf_counter_ns)
    return {"runs": [run.to_json() for run in runs]}


def measure_contest(work: Mapping[str, Any]) -> dict[str, Any]:
    """The step: a challenger against a fixed length over the round's prompts."""
    bench, runtime = _bench(work), opened(work["models"])
    pairing = Pairing(_round(work), challenger_of(work["challenger"]), work["fixed"])
    loops = loops_of(runtime, max(bench.grid.ks))
    runs = measure_pair(pairing, loops, bench.conditions, bench.grid.seed)
    return {"runs": [run.to_json() for run in runs]}


def encoded(domain: str, prompts: Sequence[Sequence[Any]]) -> tuple[EncodedPrompt, ...]:
    """What `prompts_work` wrote."""
    return tuple(EncodedPrompt(id, domain, tuple(tokens)) for id, tokens in prompts)


def grid_of(work: Mapping[str, Any], domains: Mapping[str, Sequence[EncodedPrompt]]) -> Grid:
    """What `grid_work` wrote, with prompts."""
    return Grid(tuple(work["ks"]), tuple(work["batches"]), domains, work["seed"])


def _round(work: Mapping[str, Any]) -> Round:
    return Round(work["domain"], len(work["prompts"]), encoded(work["domain"], work["prompts"]))


@dataclass(frozen=True)
class _Bench:
    """Loaded and warm."""

    loop: Loop
    grid: Grid
    conditions: Conditions


# At most one of each: engines are large, and their steps come together.
_RUNTIMES: dict[str, Runtime] = {}
_BENCHES: dict[str, _Bench] = {}


def opened(models: Mapping[str, Any]) -> Runtime:
    """The engines that `models_work` names, able to draft as far as is tuned."""
    wanted = digest(models)
    if wanted not in _RUNTIMES:
        _BENCHES.clear()  # it holds the engines of before
        _RUNTIMES.clear()
        recipe = Recipe.model_validate(models["recipe"])
        store = reopen_store(Path(models["store"]), models["shared"])
        built = BuiltModels(
            for_every_k(recipe),
            {role: store.fetch("engines", key) for role, key in models["engines"].items()},
            {role: store.fetch("tokenizers", key) for role, key in models["tokenizers"].items()},
        )
        _RUNTIMES[wanted] = open_runtime(built, threads=models["threads"])
    return _RUNTIMES[wanted]


def _bench(work: Mapping[str, Any]) -> _Bench:
    key = digest({"models": work["models"], "grid": work["grid"]})
    if key not in _BENCHES:
        runtime, grid = opened(work["models"]), grid_of(work["grid"], {})
        loop = runtime.loop(
            draft_len=max(grid.ks),
            max_prefill_tokens=runtime.recipe.engine.max_num_tokens or sys.maxsize,  # a group
        )
        shared = conditions(runtime.recipe, frozenset(runtime.tokenizer.eos_ids))
        warm_up(loop, grid, warm_up_prompt(runtime.tokenizer), shared)
        _BENCHES.clear()
        _BENCHES[key] = _Bench(loop, grid, shared)
    return _BENCHES[key]
