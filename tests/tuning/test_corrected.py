"""Predicted gains over all prompts, corrected by what a few measured rounds came to; by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tests.measure.made_records import run, timed
from tests.tuning.test_grid import grid
from tests.tuning.test_predict import K4, predictor
from toolkit.recipe.objective import Objective
from toolkit.tuning.choose import choose
from toolkit.tuning.corrected import Correction, corrected, correction
from toolkit.tuning.intervals import Interval
from toolkit.tuning.objective import Gains
from toolkit.tuning.summary import summarise

PLAN = grid(8, batches=(1,), ks=(2, 4), domains=("edit",))
# Of half of the prompts no draft stands: 10 ms a token become 14 with k = 4; of the others all
# stand: 2.8 ms.
REFUSED = {f"edit-{i}": 0.0 for i in range(4)}
PREDICTOR = predictor(PLAN, REFUSED)
PREDICTED = PREDICTOR.cells(PLAN.rounds(), K4)


def measured(tpot_ms, prompts):
    """Rounds in which k = 4 took so long a token, and plain decoding 10 ms."""
    return {
        round.key: [
            run(timed(ms, prompt_id=prompt.id, k=k, round=round.key))
            for k, ms in ((0, 10.0), (4, tpot_ms))
        ]
        for round in PLAN.rounds()
        for prompt in round.prompts
        if prompt.id in prompts
    }


def judged(rounds, objective=None):
    objective = objective or Objective()
    cells = summarise(rounds, ks=(4,), batches=(1,), domains=["edit"], objective=objective)
    asked = (PREDICTED, PREDICTOR, PLAN.rounds(), rounds, objective, 0)
    return cells, corrected(cells, *asked)


def test_which_prompts_were_measured_says_nothing_of_the_others():
    # Only prompts that refuse everything were measured, and a tenth faster than predicted.
    rounds = measured(14 / 1.1, REFUSED)
    cells, better = judged(rounds)
    assert [choice.verdict for choice in choose(cells)] == ["off"]
    plain, four = better
    assert plain == cells[0]
    [predicted] = [cell.speedup for cell in PREDICTED if cell.k == 4]
    assert predicted.value == pytest.approx((10 / 14 + 10 / 2.8) / 2)  # between the halves
    assert four.speedup.value == pytest.approx(1.1 * predicted.value)
    # The rounds agree with each other, so the interval is as wide as it was.
    assert four.speedup.low == pytest.approx(1.1 * predicted.low)
    assert four.speedup.high == pytest.approx(1.1 * predicted.high)
    assert four.tpot_p50_ns == cells[1].tpot_p50_ns  # what was measured stays what it is


def test_throughput_is_corrected_by_whole_rounds():
    rounds = measured(2.8, {f"edit-{i}" for i in range(4, 8)})
    _, [_, four] = judged(rounds, Objective(metric="output_throughput"))
    # Predicted of each: 1 ms of prefill and 20 steps of 10 ms; 4 or 20 of 14. Together 8 x 201 ms
    # for 4 x 57 + 4 x 281. Measured: 200 ms and 128.
    predicted, of_these = 8 * 201 / (4 * 57 + 4 * 281), 201 / 57
    assert four.speedup.value == pytest.approx(predicted * (200 / 128) / of_these)
    assert four.gains.cost.value == pytest.approx(four.speedup.value)


def test_requests_pair_by_prompt():
    rounds = measured(14.0, REFUSED)
    found = correction(PREDICTOR, PLAN.rounds(), rounds, 4, np.random.default_rng(0))
    assert (found.tpot.value, found.tpot.low, found.tpot.high) == pytest.approx((1.0, 1.0, 1.0))
    # Nothing was measured with k = 2.
    none = correction(PREDICTOR, PLAN.rounds(), rounds, 2, np.random.default_rng(0))
    assert none == Correction(None, None)


def test_uncertainties_add_in_squares():
    predicted = Interval(2.0, 2.0 / np.exp(0.3), 2.0 * np.exp(0.6))
    found = Interval(1.1, 1.1 / np.exp(0.4), 1.1 * np.exp(0.8))
    both = Correction(found, None).of(Gains(predicted, predicted, predicted))
    assert both.tpot.value == pytest.approx(2.2)
    assert both.tpot.low == pytest.approx(2.2 / np.exp(0.5))
    assert both.tpot.high == pytest.approx(2.2 * np.exp(1.0))
    assert (both.throughput, both.cost) == (None, None)


def test_one_round_corrects_nothing():
    cells, better = judged(measured(14.0, {"edit-0"}))
    assert better == cells
    # A point that nobody predicted stays as it was measured, too.
    other = [replace(cell, k=cell.k and 3) for cell in cells]
    asked = (PREDICTED, PREDICTOR, PLAN.rounds(), measured(14.0, REFUSED), Objective(), 0)
    assert corrected(other, *asked) == other
