"""One sitting of measuring: go through the rounds that are missing, and survive being stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from toolkit import __version__
from toolkit.engine.built import BuiltModels
from toolkit.measure.machine import machine
from toolkit.measure.metrics import percentile, tpot_ns
from toolkit.measure.records import GroupRun
from toolkit.measure.run import Conditions, EncodedPrompt, Loop
from toolkit.progress import progress
from toolkit.recipe.schema import ModelSpec
from toolkit.store import read_manifest
from toolkit.tuning.grid import PLAIN, Grid, Round, measure_round, missing, warm_up
from toolkit.tuning.journal import Journal

NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Slot:
    """One round on one of several machines: seconds since the sitting began."""

    name: str
    node: str
    start: float
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Rounds by key in the order in which they were measured, and how the sitting went."""

    rounds: Mapping[str, Sequence[GroupRun]]
    planned: int
    resumed: int  # of the rounds, how many came from the journal
    interrupted: bool
    timeline: Sequence[Slot] = ()  # of the rounds of this sitting, where machines shared them

    @property
    def complete(self) -> bool:
        return len(self.rounds) == self.planned


def joined(first: Outcome, second: Outcome) -> Outcome:
    """Two sittings as one; the second resumed what the first had measured."""
    ended = max((slot.start + slot.seconds for slot in first.timeline), default=0.0)
    later = [replace(slot, start=slot.start + ended) for slot in second.timeline]
    measured = len(first.rounds) - first.resumed
    return replace(second, resumed=second.resumed - measured, timeline=[*first.timeline, *later])


def identify(
    built: BuiltModels, *, threads: int | None, where: Mapping[str, str | int] | None = None
) -> dict[str, Any]:
    """Everything that changes a measured number, apart from the prompts of a round.

    `where` is the machine that measures, if it is not this one.
    """
    options, tune = built.recipe.speculation, built.recipe.tune
    return {
        "spectool": __version__,
        "engines": {role: _digest(path) for role, path in built.engines.items()},
        "tokenizer": _digest(built.tokenizer_dir),
        "backend": built.recipe.backend,
        # The draft's checkpoint is in its engine's digest; its path must not matter.
        "drafter": {
            name: value
            for name, value in options.model_dump(mode="json").items()
            if not isinstance(getattr(options, name), ModelSpec)
            and name not in ("max_draft_len", "draft_length")
        },
        "k": list(tune.k),
        "max_tokens": tune.max_tokens,
        "sampling": tune.sampling.model_dump(mode="json"),
        "threads": threads,
        "machine": dict(where or machine()),
    }


def measure(
    loop: Loop,
    grid: Grid,
    conditions: Conditions,
    journal: Journal,
    *,
    warm_up_prompt: EncodedPrompt,
    log: Callable[[str], None] = lambda line: None,
    clock: Callable[[], int] = perf_counter_ns,
) -> Outcome:
    """Measure what the journal lacks, round by round; Ctrl-C ends it and keeps whole rounds.

    Rounds that the grid no longer needs, given those that are done, are not planned any more.
    """
    wanted = grid.rounds()
    keys = {round.key for round in wanted}
    done = {key: runs for key, runs in journal.load().items() if key in keys}
    resumed = len(done)
    todo = list(missing(wanted, done))
    settled, interrupted = 0, False
    try:
        with progress("tuning", len(todo)) as bar:
            if todo:
                bar.describe("warming up")
                warm_up(loop, grid, warm_up_prompt, conditions)
            started = time.monotonic()
            for count, round in enumerate(todo, 1):
                if grid.settled(round, done):
                    settled += 1
                    bar.advance()
                    continue
                bar.describe(f"tuning: {round.name}")
                runs = measure_round(loop, grid, round, conditions, clock)
                journal.append(round.key, runs)
                done[round.key] = runs
                bar.advance()
                left = (time.monotonic() - started) / count * (len(todo) - count)
                log(round_line(round, runs, f"{resumed + count}/{len(wanted)}", left))
    except KeyboardInterrupt:
        interrupted = True
    return Outcome(done, len(wanted) - settled, resumed, interrupted)


def round_line(round: Round, runs: Sequence[GroupRun], place: str, seconds_left: float) -> str:
    """What a finished round says where nobody sees a bar."""
    tpots = {run.k: percentile([tpot_ns(r) for r in run.requests], 50) for run in runs}
    best = min(tpots, key=lambda k: tpots[k])
    return (
        f"round {place}: {round.name}: plain {tpots[PLAIN] / NS_PER_MS:.1f} ms a token, "
        f"best {tpots[best] / NS_PER_MS:.1f} ms at k = {best}; about {_minutes(seconds_left)} left"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _digest(directory: Path) -> str:
    return str(read_manifest(directory)["digest"])
