"""Who reads texts and measures for --mode trace: the models loaded here, or nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolkit.backends.runtime import Runtime
from toolkit.engine.built import BuiltModels
from toolkit.graph.run import Ran, Workers, run
from toolkit.graph.step import Graph, Needs, Step
from toolkit.measure.records import GroupRun
from toolkit.measure.step_times import StepTimes
from toolkit.measure.trace_log import Log
from toolkit.recipe.schema import Recipe
from toolkit.store import Store
from toolkit.tuning.adaptive import Pairing, loops_of, measure_pair
from toolkit.tuning.grid import Grid, Round
from toolkit.tuning.rounds import models_work, pair_work
from toolkit.tuning.setup import conditions
from toolkit.tuning.trace_mode import Traced, trace, whole_table
from toolkit.tuning.trace_work import gathered, times_work, trace_work

Keep = Callable[[Round, list[GroupRun]], None]


class Tracing(Protocol):
    """What a trace needs of the models."""

    def trace(self, grid: Grid, engine: Mapping[str, Any], log: Log | None) -> Traced: ...

    def times(self, grid: Grid, traced: Traced) -> StepTimes: ...

    def pairs(self, grid: Grid, pairings: Sequence[Pairing], keep: Keep) -> None: ...


@dataclass(frozen=True)
class TracingHere:
    """In this process."""

    recipe: Recipe
    runtime: Runtime
    store: Store

    def trace(self, grid: Grid, engine: Mapping[str, Any], log: Log | None) -> Traced:
        return trace(self.recipe, grid, self.runtime, engine, self.store, log, confident=True)

    def times(self, grid: Grid, traced: Traced) -> StepTimes:
        return whole_table(grid, self.runtime, self.recipe.tune.sampling, traced)

    def pairs(self, grid: Grid, pairings: Sequence[Pairing], keep: Keep) -> None:
        shared = conditions(self.recipe, frozenset(self.runtime.tokenizer.eos_ids))
        loops = loops_of(self.runtime, max(grid.ks))
        for pairing in pairings:
            keep(pairing.round, measure_pair(pairing, loops, shared, grid.seed))


@dataclass(frozen=True)
class TracingOn:
    """A step for each prompt set, one for the step times, and one for each pair of runs."""

    workers: Workers
    built: BuiltModels
    store: Store
    needs: Needs
    threads: int | None
    log: Callable[[str], None]

    def trace(self, grid: Grid, engine: Mapping[str, Any], log: Log | None) -> Traced:
        models = self._models()
        ran = self._run(
            "tracing",
            [
                self._step(domain, "trace", f"trace {domain}", work)
                for domain in grid.domains
                for work in [trace_work(models, engine, grid, domain, log)]
            ],
            self._say,
        )
        found = {done.step.id: done.result for done in ran}
        return gathered(grid, self.built.recipe.tune.sampling, found)

    def times(self, grid: Grid, traced: Traced) -> StepTimes:
        work = times_work(self._models(), grid, traced)
        steps = [self._step("times", "step_times", "step times", work)]
        [ran] = self._run("timing steps", steps, self._say)
        return StepTimes.from_json(ran.result)

    def pairs(self, grid: Grid, pairings: Sequence[Pairing], keep: Keep) -> None:
        models, rounds = self._models(), {p.round.key: p.round for p in pairings}
        self._run(
            "challengers of the fixed length",
            [
                self._step(
                    pairing.round.key,
                    "contest",
                    f"{pairing.challenger} against k = {pairing.fixed}: {pairing.round.name}",
                    pair_work(models, grid, pairing),
                )
                for pairing in pairings
            ],
            lambda ran: keep(
                rounds[ran.step.id], [GroupRun.from_json(found) for found in ran.result["runs"]]
            ),
        )

    def _models(self) -> dict[str, Any]:
        return models_work(self.built, self.store, self.threads)

    def _step(self, id: str, kind: str, title: str, work: Mapping[str, Any]) -> Step:
        return Step(id=id, kind=kind, title=title, needs=self.needs, work=work)

    def _say(self, ran: Ran) -> None:
        self.log(f"{ran.step.title} ({ran.node})")

    def _run(
        self, title: str, steps: Sequence[Step], report: Callable[[Ran], None] = lambda ran: None
    ) -> list[Ran]:
        return run(Graph(steps), self.workers, title=title, report=report)
