"""What a few measured rounds say of a prediction over all prompts.

Which prompts are measured is a chance that the prediction does not have: it knows what each of them
accepts. What it may have wrong is how long steps take, and that shows in any round. So the gain
over all prompts is the predicted one times the middle of what measured gains were over predicted
ones of the same requests (a ratio estimator), over all domains: they share their steps. Both
uncertainties are in its interval; they are independent, so on a logarithmic scale their squares
add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from toolkit.measure.metrics import ratio
from toolkit.measure.records import GroupRun
from toolkit.recipe.objective import Objective
from toolkit.tuning.grid import PLAIN, Round
from toolkit.tuning.intervals import Interval, quantile_interval
from toolkit.tuning.objective import Gains
from toolkit.tuning.predict import Predictor
from toolkit.tuning.summary import Cell, throughputs, tpot_ratios

Measured = Mapping[str, Sequence[GroupRun]]  # round key -> one run per draft length


@dataclass(frozen=True)
class Correction:
    """Measured over predicted gains; None: too few rounds."""

    tpot: Interval | None
    throughput: Interval | None

    def of(self, predicted: Gains) -> Gains:
        """These gains, as the measured rounds correct them."""
        return Gains(
            _times(predicted.tpot, self.tpot),
            _times(predicted.throughput, self.throughput),
            _times(predicted.cost, self.throughput),
        )


UNKNOWN = Correction(None, None)


def corrected(
    cells: Sequence[Cell],
    predicted: Sequence[Cell],
    predictor: Predictor,
    rounds: Sequence[Round],
    measured: Measured,
    objective: Objective,
    seed: int,
) -> list[Cell]:
    """The measured cells with the gains over all prompts that were predicted and corrected.

    Cells with too few rounds for a correction keep their own.
    """
    expected = {(cell.batch_size, cell.domain, cell.k): cell.gains for cell in predicted}
    points = {(cell.batch_size, cell.k) for cell in cells if cell.k != PLAIN}
    corrections = {
        (batch, k): correction(
            predictor,
            [round for round in rounds if round.batch_size == batch],
            measured,
            k,
            np.random.default_rng([seed, batch, k]),
        )
        for batch, k in points
    }

    def better(cell: Cell) -> Cell:
        gains = expected.get((cell.batch_size, cell.domain, cell.k))
        found = corrections.get((cell.batch_size, cell.k), UNKNOWN)
        if gains is None or found == UNKNOWN:
            return cell
        gains = found.of(gains)
        return replace(cell, gains=gains, speedup=gains.by(objective))

    return [better(cell) for cell in cells]


def correction(
    predictor: Predictor,
    rounds: Sequence[Round],  # of one batch size
    measured: Measured,
    k: int,
    rng: np.random.Generator,
) -> Correction:
    """From those of the rounds that were measured with this draft length."""
    tpots: dict[str, list[list[float]]] = {}  # domain -> rounds
    walls: dict[str, list[list[float]]] = {}
    for round in rounds:
        runs = {run.k: run for run in measured.get(round.key, ())}
        if not {PLAIN, k} <= runs.keys():
            continue
        gained, throughput = predictor.gained(round, k)
        ratios = tpot_ratios(runs[PLAIN], runs[k])
        both = [ratio(ratios[prompt], gained[prompt]) for prompt in ratios.keys() & gained.keys()]
        tpots.setdefault(round.domain, []).append(sorted(both))
        tokens, ns, plain_tokens, plain_ns = throughputs(runs, k)
        whole = ratio(ratio(tokens, ns), ratio(plain_tokens, plain_ns))
        walls.setdefault(round.domain, []).append([ratio(whole, throughput)])
    return Correction(
        quantile_interval(list(tpots.values()), 0.5, rng),
        quantile_interval(list(walls.values()), 0.5, rng),
    )


def _times(one: Interval | None, other: Interval | None) -> Interval | None:
    """The product of two independent estimates."""
    if one is None or other is None:
        return None
    value = one.value * other.value
    down = math.hypot(math.log(one.value / one.low), math.log(other.value / other.low))
    up = math.hypot(math.log(one.high / one.value), math.log(other.high / other.value))
    return Interval(value, value * math.exp(-down), value * math.exp(up))
