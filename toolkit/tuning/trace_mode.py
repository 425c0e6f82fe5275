"""`--mode trace`: read the target's text once, predict every draft length, measure only the best.

Texts come from the store, from the target (generated once) or from a log. Each drafter's trace of
them and a table of step times predict the whole surface; then real paired rounds over a share of
the prompts measure the winner of each batch size, a near neighbour and plain decoding, and correct
what was predicted of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.backends.runtime import Runtime
from toolkit.errors import InputError
from toolkit.measure.run import EncodedPrompt, sampling_of
from toolkit.measure.step_times import StepTimes
from toolkit.measure.time_steps import MAX_ROUNDS, measure_steps
from toolkit.measure.trace_log import Log, foreign_text
from toolkit.measure.trace_outputs import DRAFT_LEN, Wanted, target_outputs
from toolkit.progress import progress
from toolkit.recipe.schema import Recipe, Sampling
from toolkit.registry import DRAFTERS
from toolkit.speculation.draft_length import DraftLengthPolicy, Fixed
from toolkit.speculation.trace import DraftTrace, TracedText, Tracer
from toolkit.store import Store, digest, write_atomic
from toolkit.tuning.adaptive import THRESHOLDS, Scored, Trial, score
from toolkit.tuning.choose import Choice, by_prediction, choose
from toolkit.tuning.confirm import ConfirmGrid, confirm_grid
from toolkit.tuning.grid import PLAIN, Grid
from toolkit.tuning.objective import gpus_of
from toolkit.tuning.predict import Predictor, Traces
from toolkit.tuning.setup import require_traceable
from toolkit.tuning.summary import Cell
from toolkit.tuning.trees import Trees, find_trees

LARGEST_BATCH = 16  # of generating: beyond it a step takes longer with every request

Texts = Mapping[tuple[str, str], TracedText]  # (domain, prompt id)


@dataclass(frozen=True)
class Traced:
    """The texts, what the drafter would have done with them, and what it took to know."""

    texts: Texts
    traces: Traces
    generated_tokens: int
    cached: bool
    agreement: Mapping[str, float]  # domain -> of a log's tokens, how many are the target's choice
    seconds: Mapping[str, float]  # of each phase


@dataclass(frozen=True)
class TraceReport:
    """What was predicted, and from what."""

    predicted: Sequence[Cell]  # over all prompts
    choices: Sequence[Choice]
    adaptive: Mapping[int, Scored]  # batch size -> the best policy that follows the text
    predictor: Predictor
    again: Sequence[Cell]  # over the confirming rounds alone, to compare with what they measured
    traced: Traced
    times: StepTimes
    log: Log | None = None
    trials: Sequence[Trial] = ()  # policies and trees that were measured
    trees: Trees | None = None

    def beside(self, confirm: ConfirmGrid) -> TraceReport:
        """The same, to be compared with what these rounds measured."""
        return replace(self, again=_over(self.predictor, confirm))

    def document(self, measured: Sequence[Cell]) -> dict[str, Any]:
        """For results.json."""
        traced = self.traced
        return {
            "summary": [asdict(cell) for cell in self.predicted],
            "adaptive": [
                {**scored.policy.to_json(), "cells": [asdict(cell) for cell in scored.cells]}
                for scored in self.adaptive.values()
            ],
            "trees": self.trees.to_json() if self.trees else None,
            "trials": [trial.to_json() for trial in self.trials],
            "choices": [
                {"batch_size": c.batch_size, "domain": c.domain, "verdict": c.verdict, "k": c.k}
                for c in self.choices
            ],
            "predicted_and_measured": [
                {
                    "batch_size": cell.batch_size,
                    "domain": cell.domain,
                    "k": cell.k,
                    "acceptance_length": [cell.acceptance_length, found.acceptance_length],
                    "tpot_p50_ns": [cell.tpot_p50_ns, found.tpot_p50_ns],
                }
                for cell, found in pairs(self.again, measured)
            ],
            "prompts": len(traced.texts),
            "log": str(self.log.path) if self.log else None,
            "generated_tokens": traced.generated_tokens,
            "outputs_cached": traced.cached,
            "agreement": dict(traced.agreement),
            "seconds": dict(traced.seconds),
            "step_time_tokens": self.times.emitted_tokens,
            "step_times": [asdict(point) for point in self.times.points],
            "prefill_ns_per_token": {str(b): ns for b, ns in self.times.prefill_ns.items()},
            "change_ns": {str(b): ns for b, ns in self.times.change_ns.items()},
        }


def pairs(predicted: Sequence[Cell], measured: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Predicted and measured cells of the same point."""
    found = {(cell.batch_size, cell.domain, cell.k): cell for cell in measured}
    keys = [(cell.batch_size, cell.domain, cell.k) for cell in predicted]
    return [(c, found[key]) for c, key in zip(predicted, keys, strict=True) if key in found]


def trace(
    recipe: Recipe, grid: Grid, runtime: Runtime, engine: Mapping[str, Any], store: Store,
    log: Log | None, *, confident: bool = False,
) -> Traced:  # fmt: skip
    """The texts and the drafter's trace of each; `confident`: and how sure it was, if it knows."""
    require_traceable(recipe)
    prompts = [prompt for found in grid.domains.values() for prompt in found]
    tree = DRAFTERS[recipe.speculation.drafter].tree(recipe.speculation)
    depth = max(*grid.ks, tree.depth if tree else 0)
    started = time.monotonic()
    with progress("reading the log" if log else "the target's outputs", len(prompts)) as bar:
        if log:
            texts, agreement = _logged(recipe, runtime, prompts, log, depth, bar.advance)
            generated, cached = 0, False
        else:
            wanted = Wanted(
                engine=engine,
                sampling=recipe.tune.sampling,
                # The last round may reach beyond max_tokens.
                max_tokens=recipe.tune.max_tokens + depth,
                stop_tokens=frozenset(runtime.tokenizer.eos_ids),
            )
            most = recipe.engine.max_num_tokens or recipe.engine.max_seq_len * LARGEST_BATCH
            outputs = target_outputs(
                lambda: runtime.loop(draft_len=DRAFT_LEN, max_prefill_tokens=most),
                runtime.token_probs,
                prompts,
                wanted,
                store,
                batch=min(LARGEST_BATCH, recipe.engine.max_batch_size),
                advance=bar.advance,
            )
            texts, agreement = outputs.texts, {}
            generated, cached = outputs.generated_tokens, outputs.cached
    read = time.monotonic()
    tracer = runtime.tracer()
    assert tracer is not None  # setup.check refuses recipes without a drafter
    least = min(THRESHOLDS) if confident and tracer.has_confidence else None
    with progress("tracing the drafter", len(texts)) as bar:
        traces = []
        for text in texts:
            traces.append(_traced(tracer, text, depth, least))
            bar.advance()
    keys = [(prompt.domain, prompt.id) for prompt in prompts]
    return Traced(
        dict(zip(keys, texts, strict=True)),
        dict(zip(keys, traces, strict=True)),
        generated,
        cached,
        agreement,
        {"outputs": read - started, "drafter": time.monotonic() - read},
    )


def _traced(tracer: Tracer, text: TracedText, depth: int, least: float | None) -> DraftTrace:
    if len(text.output) < 2:  # prefill said everything
        nothing = np.zeros((0, depth))
        return DraftTrace(nothing, np.zeros(0, dtype=np.int64), sure=nothing)
    return tracer.trace(text, depth, least)


def _logged(
    recipe: Recipe,
    runtime: Runtime,
    prompts: Sequence[EncodedPrompt],
    log: Log,
    depth: int,
    advance: Callable[[float], None],
) -> tuple[list[TracedText], dict[str, float]]:
    """The log's outputs as tokens, with what the target thinks of them."""
    sampling, most = recipe.tune.sampling, recipe.tune.max_tokens + depth
    texts: list[TracedText] = []
    agreed: dict[str, list[float]] = {}
    problems = []
    for prompt in prompts:
        key = (prompt.domain, prompt.id)
        encode = partial(runtime.tokenizer.encode, add_special=False)
        decode = partial(runtime.tokenizer.decode, skip_special=False)
        if reason := foreign_text(log.outputs[key], encode, decode):
            problems.append(
                f"  {log.path}:{log.lines[key]}: output: {reason}; trace logs of the model that "
                "wrote them"
            )
            continue
        tokens = tuple(encode(log.outputs[key])[:most])
        if len(tokens) < 2:
            problems.append(f"  {log.path}:{log.lines[key]}: output: one token; a trace needs two")
            continue
        params = sampling_of(prompt, sampling)
        probs = runtime.token_probs(prompt.tokens, tokens, params)
        texts.append(TracedText(prompt.tokens, tokens, params, None if params.greedy else probs))
        # Sampled: a token that the filters exclude was not drawn from this target.
        agreed.setdefault(prompt.domain, []).append(float((probs > 0).mean()))
        advance(1)
    if problems:
        lines = "\n".join(problems)
        raise InputError(f"--log: {len(problems)} problem(s)\n{lines}")
    return texts, {domain: float(np.mean(shares)) for domain, shares in agreed.items()}


def step_times(
    grid: Grid, measure: Callable[[Grid, Traced], StepTimes], traced: Traced, directory: Path,
    identity: Mapping[str, Any], *, fresh: bool,
) -> StepTimes:  # fmt: skip
    """From the results directory where the same run left them, else measured now."""
    asked = {**identity, "batch": sorted(grid.batches), "contexts": list(_contexts(traced))}
    path = directory / f"step-times-{digest(asked)[:12]}.json"
    if not fresh and (known := _read_times(path)):
        return known
    times = measure(grid, traced)
    write_atomic(path, json.dumps(times.to_json()) + "\n")
    return times


def whole_table(grid: Grid, runtime: Runtime, sampling: Sampling, traced: Traced) -> StepTimes:
    """Every batch size and draft length at two contexts."""
    with progress("timing steps", MAX_ROUNDS) as bar:
        return _measured(
            grid, runtime, sampling, traced, contexts=_contexts(traced), advance=bar.advance
        )


def draft_times(grid: Grid, runtime: Runtime, sampling: Sampling, traced: Traced) -> StepTimes:
    """As little as tells the time of drafts: two lengths, at one context."""
    middle = sum(_contexts(traced)) // 2
    lengths = sorted({1, max(grid.ks)})
    return _measured(
        grid, runtime, sampling, traced, contexts=(middle, middle), lengths=lengths, rounds=(2, 3)
    )


def _contexts(traced: Traced) -> tuple[int, int]:
    """What most texts lie between, half of their answer included."""
    lengths = [len(t.prompt) + len(t.output) // 2 for t in traced.texts.values()]
    shorter, longer = (int(q) for q in np.quantile(lengths, [0.1, 0.9]))
    return shorter, longer


def _measured(
    grid: Grid, runtime: Runtime, sampling: Sampling, traced: Traced,
    *, contexts: tuple[int, int], **options: Any,
) -> StepTimes:  # fmt: skip
    prompt = next(iter(next(iter(grid.domains.values()))))
    room = runtime.max_seq_len // 2
    return measure_steps(
        runtime.timed_loop,
        runtime.max_seq_len,
        text=[token for t in traced.texts.values() for token in (*t.prompt, *t.output)],
        batches=grid.batches,
        longest=max(grid.ks),
        contexts=(min(contexts[0], room), min(contexts[1], room)),
        sampling=sampling_of(prompt, sampling),
        **options,
    )


def _read_times(path: Path) -> StepTimes | None:
    try:
        return StepTimes.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, or not ours: measured anew and replaced


def predict(
    recipe: Recipe, grid: Grid, traced: Traced, times: StepTimes, log: Log | None
) -> tuple[TraceReport, ConfirmGrid]:
    """The surface, its best points, and what to measure of it."""
    predictor = Predictor(
        traced.traces,
        times,
        max_tokens=recipe.tune.max_tokens,
        objective=recipe.tune.objective,
        gpus=gpus_of(recipe),
        seed=grid.seed,
    )
    fixed: dict[int, DraftLengthPolicy] = {k: Fixed(k) for k in (PLAIN, *grid.ks)}
    cells = predictor.cells(grid.rounds(), fixed)
    objective = recipe.tune.objective
    choices = choose(cells, objective, rank=by_prediction(objective))
    confirm = confirm_grid(grid, cells, choices, objective)
    again = _over(predictor, confirm)
    adaptive = score(predictor, grid.rounds(), grid.ks)
    wanted = recipe.tune.max_tokens - 1
    trees = find_trees(recipe.speculation, traced.traces.values(), wanted)
    report = TraceReport(
        cells, choices, adaptive, predictor, again, traced, times, log, trees=trees
    )
    return report, confirm


def _over(predictor: Predictor, confirm: ConfirmGrid) -> list[Cell]:
    """What the confirming rounds alone are predicted to show."""
    rounds = confirm.rounds()
    return [
        cell
        for batch, lengths in confirm.at.items()
        for cell in predictor.cells(
            [round for round in rounds if round.batch_size == batch],
            {k: Fixed(k) for k in (PLAIN, *lengths)},
        )
    ]
