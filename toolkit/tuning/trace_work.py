"""The parts of a trace as steps: what one prompt set says, and how long steps take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.measure.run import EncodedPrompt, sampling_of
from toolkit.measure.trace_log import Log
from toolkit.recipe.schema import Recipe, Sampling
from toolkit.speculation.request import GREEDY
from toolkit.speculation.trace import DraftTrace, TracedText
from toolkit.store import reopen_store
from toolkit.tuning.grid import Grid
from toolkit.tuning.rounds import encoded, grid_of, grid_work, opened, prompts_work
from toolkit.tuning.trace_mode import Traced, trace, whole_table


def trace_work(
    models: Mapping[str, Any], engine: Mapping[str, Any], grid: Grid, domain: str, log: Log | None
) -> dict[str, Any]:
    """What `read` needs: the engines, and one prompt set with its answers if a log has them."""
    prompts = grid.domains[domain]
    answers = None
    if log is not None:
        keys = [(domain, prompt.id) for prompt in prompts]
        said = [[log.outputs[key], log.lines[key]] for key in keys]
        answers = {"path": str(log.path), "said": said}
    return {
        "models": dict(models),
        "engine": dict(engine),
        "grid": grid_work(grid),
        "domain": domain,
        "prompts": prompts_work(prompts),
        "log": answers,
    }


def read(work: Mapping[str, Any]) -> dict[str, Any]:
    """The step: the target's outputs, which stay in the store, and the drafter's trace of them."""
    models, domain = work["models"], work["domain"]
    runtime = opened(models)
    prompts = encoded(domain, work["prompts"])
    grid = grid_of(work["grid"], {domain: prompts})
    store = reopen_store(Path(models["store"]), models["shared"])
    log = _log(work["log"], prompts)
    recipe = Recipe.model_validate(models["recipe"])
    traced = trace(recipe, grid, runtime, work["engine"], store, log, confident=True)
    return {
        "texts": [
            [list(text.output), None if text.target_probs is None else text.target_probs.tolist()]
            for text in traced.texts.values()
        ],
        "traces": [_said(found) for found in traced.traces.values()],
        "generated": traced.generated_tokens,
        "cached": traced.cached,
        "agreement": dict(traced.agreement),
        "seconds": dict(traced.seconds),
    }


def _log(said: Mapping[str, Any] | None, prompts: Sequence[EncodedPrompt]) -> Log | None:
    if said is None:
        return None
    keys = [(prompt.domain, prompt.id) for prompt in prompts]
    outputs = {key: text for key, (text, _) in zip(keys, said["said"], strict=True)}
    lines = {key: line for key, (_, line) in zip(keys, said["said"], strict=True)}
    return Log(Path(said["path"]), (), outputs, lines, 0)


# Arrays of a trace and what their numbers are.
_ARRAYS = {"accept": np.float64, "offered": np.int64, "ranks": np.int64, "sure": np.float64}


def _said(found: DraftTrace) -> dict[str, Any]:
    arrays = {name: getattr(found, name) for name in _ARRAYS}
    return {
        name: None if array is None else [list(array.shape), array.reshape(-1).tolist()]
        for name, array in arrays.items()
    }


def _trace(said: Mapping[str, Any]) -> DraftTrace:
    """What `_said` wrote; shapes are said, for an array without numbers has one too."""
    arrays: dict[str, Any] = {
        name: None if said[name] is None else np.array(said[name][1], dtype).reshape(said[name][0])
        for name, dtype in _ARRAYS.items()
    }
    return DraftTrace(**arrays)


def gathered(grid: Grid, sampling: Sampling, found: Mapping[str, Mapping[str, Any]]) -> Traced:
    """What `read` found of each domain, as one trace; seconds are those of all machines."""
    texts: dict[tuple[str, str], TracedText] = {}
    traces: dict[tuple[str, str], DraftTrace] = {}
    agreement: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for domain, prompts in grid.domains.items():
        said = found[domain]
        parts = zip(prompts, said["texts"], said["traces"], strict=True)
        for prompt, (output, probs), trace_said in parts:
            key = (domain, prompt.id)
            known = None if probs is None else np.array(probs)
            texts[key] = TracedText(
                prompt.tokens, tuple(output), sampling_of(prompt, sampling), known
            )
            traces[key] = _trace(trace_said)
        agreement |= said["agreement"]
        for phase, spent in said["seconds"].items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    generated = sum(said["generated"] for said in found.values())
    cached = all(said["cached"] for said in found.values())
    return Traced(texts, traces, generated, cached, agreement, seconds)


def times_work(models: Mapping[str, Any], grid: Grid, traced: Traced) -> dict[str, Any]:
    """What `time_steps` needs: the engines, and real texts to fill contexts with."""
    return {
        "models": dict(models),
        "grid": grid_work(grid),
        "texts": [[list(text.prompt), list(text.output)] for text in traced.texts.values()],
    }


def time_steps(work: Mapping[str, Any]) -> dict[str, Any]:
    """The step: every batch size and draft length at two contexts."""
    runtime = opened(work["models"])
    texts = {
        ("", str(place)): TracedText(tuple(prompt), tuple(output), GREEDY)
        for place, (prompt, output) in enumerate(work["texts"])
    }
    prompts = [EncodedPrompt(id, "", text.prompt) for (_, id), text in texts.items()]
    traced = Traced(texts, {}, 0, True, {}, {})
    grid = grid_of(work["grid"], {"": prompts})
    return whole_table(grid, runtime, runtime.recipe.tune.sampling, traced).to_json()
