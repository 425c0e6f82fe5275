"""A round as a step: measured in any process that can open the engines, from one document."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from toolkit.backends.runtime import open_runtime
from toolkit.engine.built import BuiltModels
from toolkit.measure.run import Conditions, EncodedPrompt, Loop
from toolkit.recipe.schema import Recipe
from toolkit.store import Store, digest, reopen_store
from toolkit.tuning.grid import Grid, Round, measure_round, warm_up
from toolkit.tuning.setup import conditions, for_every_k, warm_up_prompt


def round_work(
    built: BuiltModels, grid: Grid, round: Round, store: Store, threads: int | None
) -> dict[str, Any]:
    """What `measure` needs: digests of engines, the grid without its prompts, and one round."""
    return {
        "models": {
            "recipe": built.recipe.model_dump(mode="json"),
            "engines": {role: path.name for role, path in built.engines.items()},
            "tokenizers": {role: path.name for role, path in built.tokenizers.items()},
            "store": str(store.root),
            "shared": store.url,
            "threads": threads,
            "ks": list(grid.ks),
            "batches": list(grid.batches),
            "seed": grid.seed,
        },
        "domain": round.domain,
        "prompts": [[prompt.id, list(prompt.tokens)] for prompt in round.prompts],
    }


def measure(work: Mapping[str, Any]) -> dict[str, Any]:
    """The step: every draft length over the round's prompts, in the order that the grid says."""
    bench = _bench(work["models"])
    prompts = (EncodedPrompt(id, work["domain"], tuple(tokens)) for id, tokens in work["prompts"])
    round = Round(work["domain"], len(work["prompts"]), tuple(prompts))
    runs = measure_round(bench.loop, bench.grid, round, bench.conditions, perf_counter_ns)
    return {"runs": [run.to_json() for run in runs]}


@dataclass(frozen=True)
class _Bench:
    """Loaded and warm."""

    loop: Loop
    grid: Grid
    conditions: Conditions


_BENCHES: dict[str, _Bench] = {}  # at most one: engines are large, and their rounds come together


def _bench(models: Mapping[str, Any]) -> _Bench:
    key = digest(models)
    if key not in _BENCHES:
        _BENCHES.clear()
        _BENCHES[key] = _opened(models)
    return _BENCHES[key]


def _opened(models: Mapping[str, Any]) -> _Bench:
    recipe = Recipe.model_validate(models["recipe"])
    store = reopen_store(Path(models["store"]), models["shared"])
    built = BuiltModels(
        recipe,
        {role: store.fetch("engines", key) for role, key in models["engines"].items()},
        {role: store.fetch("tokenizers", key) for role, key in models["tokenizers"].items()},
    )
    runtime = open_runtime(replace(built, recipe=for_every_k(recipe)), threads=models["threads"])
    loop = runtime.loop(
        draft_len=max(models["ks"]),
        max_prefill_tokens=recipe.engine.max_num_tokens or sys.maxsize,  # a group at once
    )
    grid = Grid(tuple(models["ks"]), tuple(models["batches"]), {}, models["seed"])
    shared = conditions(recipe, frozenset(runtime.tokenizer.eos_ids))
    warm_up(loop, grid, warm_up_prompt(runtime.tokenizer), shared)
    return _Bench(loop, grid, shared)
