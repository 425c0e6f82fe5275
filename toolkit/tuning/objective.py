"""What is made best: how a gain over plain decoding is measured, and which points may be taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.recipe.objective import Objective
from toolkit.recipe.schema import Recipe
from toolkit.tuning.intervals import (
    Counts,
    Interval,
    Values,
    quantile_interval,
    throughput_gain,
)

NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Gpus:
    """How many are busy without and with speculation; a cpu backend counts its machine as one."""

    plain: int = 1
    speculating: int = 1

    def busy(self, *, plain: bool) -> int:
        return self.plain if plain else self.speculating


@dataclass(frozen=True)
class Gains:
    """Of one point over plain decoding of the same prompts; above 1 is better."""

    tpot: Interval | None
    throughput: Interval | None  # tokens/s
    cost: Interval | None  # GPU-seconds of plain decoding over those of this point

    def by(self, objective: Objective) -> Interval | None:
        """The one that the objective is about."""
        if objective.metric == "tpot":
            return self.tpot
        return self.cost if objective.metric == "gpu_seconds" else self.throughput


def gains(
    ratios: Sequence[Values],  # TPOT plain / speculating, of each request, round and domain
    counts: Sequence[Counts],
    objective: Objective,
    gpus: Gpus,
    rng: np.random.Generator,
) -> Gains:
    """TPOT at percentile p: the ratio that p % of the requests reach or exceed, so the median for
    p = 50 and nearly the worst for p = 99. Throughput: the ratio of the sums.
    """
    tpot = quantile_interval(ratios, 1 - objective.percentile / 100, rng)
    throughput = throughput_gain(counts, rng)
    cost = throughput and scaled(throughput, gpus.plain / gpus.speculating)
    return Gains(tpot, throughput, cost)


def scaled(interval: Interval, factor: float) -> Interval:
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor)


def gpus_of(recipe: Recipe) -> Gpus:
    """A draft beside the target's engines may have GPUs of its own."""
    if recipe.backend == "cpu":
        return Gpus()
    plain = recipe.target.parallel.tp * recipe.target.parallel.pp
    drafts = [model.parallel for role, model in recipe.models().items() if role != "target"]
    apart = recipe.backend == "tensorrt" and recipe.serve.tensorrt.placement == "separate"
    return Gpus(plain, plain + (sum(each.tp * each.pp for each in drafts) if apart else 0))


def keeps_limit(tpot_ns: float | None, objective: Objective) -> bool:
    """Whether a TPOT at the objective's percentile is allowed."""
    if objective.tpot_limit_ms is None:
        return True
    return tpot_ns is not None and tpot_ns <= objective.tpot_limit_ms * NS_PER_MS
