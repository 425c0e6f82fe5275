"""Predicted cells against numbers worked out by hand."""

import numpy as np
import pytest

from tests.tuning.test_grid import grid
from toolkit.measure.step_times import StepTime, StepTimes
from toolkit.recipe.objective import Objective
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.trace import DraftTrace, by_position
from toolkit.tuning.choose import choose
from toolkit.tuning.predict import Predictor

MS = 1_000_000
K4 = {k: Fixed(k) for k in (0, 2, 4)}


def times(*batches, change=0.0):
    """10 ms a step, and 1 ms more for each token that all of a batch draft, at any context."""
    points = [
        StepTime(b, k, c, 3, 0.0, 0.0, 0.0, (10.0 + k) * MS, 0.0)
        for b in batches
        for k in (0, 4)
        for c in (1, 9)
    ]
    prefill = dict.fromkeys(batches, 0.5 * MS)
    return StepTimes(tuple(points), prefill, dict.fromkeys(batches, change * MS))


def predictor(plan, chances, metric="tpot", offered=None, change=0.0):
    """`chances`: prompt id -> that each of its drafts stands; `offered`: how many there are."""
    traces = {
        (domain, prompt.id): DraftTrace(
            by_position(np.full(60, chances.get(prompt.id, 1.0)), 4),
            np.full(60, 4) if offered is None else np.resize(offered, 60),
        )
        for domain, prompts in plan.domains.items()
        for prompt in prompts
    }
    return Predictor(
        traces,
        times(*plan.batches, change=change),
        max_tokens=21,
        objective=Objective(metric=metric),
        seed=0,
    )


def predicted(plan, chances, metric="tpot", offered=None, change=0.0):
    found = predictor(plan, chances, metric, offered, change).cells(plan.rounds(), K4)
    return {(c.batch_size, c.domain, c.k): c for c in found}


def test_drafts_that_always_stand_pay_their_whole_length():
    cells = predicted(grid(4, batches=(1,), ks=(2, 4), domains=("edit",)), {})
    # Twenty tokens after the first: 20 steps of 10 ms; 7 steps of 12 ms for 21; 4 of 14 ms.
    assert cells[1, "edit", 0].tpot_p50_ns == pytest.approx(10 * MS)
    assert cells[1, "edit", 2].tpot_p50_ns == pytest.approx(4 * MS)
    assert cells[1, "edit", 4].tpot_p50_ns == pytest.approx(2.8 * MS)
    assert cells[1, "edit", 4].acceptance_length == 5
    assert cells[1, "edit", 4].acceptance_by_position_joint == (1, 1, 1, 1)
    assert cells[1, "edit", 4].verify_steps == 16
    gain = cells[1, "edit", 4].speedup
    assert (gain.value, gain.low, gain.high) == pytest.approx((10 / 2.8,) * 3)
    [choice] = choose(cells.values())
    assert (choice.verdict, choice.k) == ("on", 4)


def test_drafts_that_never_stand_are_switched_off():
    plan = grid(4, batches=(1,), ks=(2, 4), domains=("edit",))
    cells = predicted(plan, {p.id: 0.0 for p in plan.domains["edit"]})
    assert cells[1, "edit", 2].speedup.value == pytest.approx(10 / 12)
    assert cells[1, "edit", 2].acceptance_length == 1
    [choice] = choose(cells.values())
    assert choice.verdict == "off"


def test_the_pool_is_over_the_requests_of_every_domain():
    plan = grid(4, batches=(2,), ks=(2, 4))
    cells = predicted(plan, {p.id: 0.0 for p in plan.domains["code"]})
    assert cells[2, "all", 4].pooled
    assert cells[2, "all", 4].requests == 8
    # Four requests need 20 steps, four need 4.
    assert cells[2, "all", 4].verify_steps == 96
    assert cells[2, "all", 4].acceptance_rate == pytest.approx(16 * 4 / (96 * 4))


def test_throughput_counts_prefill_and_the_slowest_of_a_group():
    plan = grid(4, batches=(2,), ks=(2, 4), domains=("edit",))
    cells = predicted(plan, {"edit-0": 0.0}, metric="output_throughput")
    # Prompts of 2 tokens: 2 ms of prefill a group. Plain: (1 + 20) x 2 tokens in 202 ms.
    assert cells[2, "edit", 0].output_throughput == pytest.approx(42 / 0.202)
    # One group has a request of 20 steps beside one that emits 5 a step: 21 + 101 in 282 ms; the
    # other 21 + 21 in 58 ms.
    assert cells[2, "edit", 4].output_throughput == pytest.approx((122 + 42) / (0.282 + 0.058))


def test_a_batch_that_drafts_now_and_then_pays_for_the_tokens_it_reads_and_for_each_change():
    plan = grid(4, batches=(2,), ks=(2, 4), domains=("edit",))
    wrong = {p.id: 0.0 for p in plan.domains["edit"]}
    cells = predicted(plan, wrong, offered=[4, 0], change=3.0)
    # Nothing stands, so every token is a step: 14 ms and 10 ms in turn, and 3 ms for each change,
    # the one after prefill included: (10 x 14 + 10 x 10 + 20 x 3) / 20.
    assert cells[2, "edit", 4].tpot_p50_ns == pytest.approx(15 * MS)
    assert cells[2, "edit", 4].draft_tokens == 4 * 40
    # Plain decoding changes once.
    assert cells[2, "edit", 0].tpot_p50_ns == pytest.approx((10 + 3 / 20) * MS)


def test_requests_out_of_step_share_the_tokens_of_a_step():
    plan = grid(2, batches=(2,), ks=(2, 4), domains=("edit",))
    one, two = (p.id for p in plan.domains["edit"])
    cells = predicted(plan, {one: 1.0, two: 0.0})
    # One emits five a step and is done after four; the other drafts for nothing: 14 ms a step.
    assert cells[2, "edit", 4].tpot_p50_ns == pytest.approx((14 / 5 + 14) / 2 * MS)


def test_sampled_texts_are_played_several_times():
    plan = grid(6, batches=(1,), ks=(2, 4), domains=("edit",))
    cells = predicted(plan, {p.id: 0.5 for p in plan.domains["edit"]})
    # 1 + 1/2 + 1/4 tokens of 12 ms in the mean; a course of twenty tokens is a rough sample.
    assert cells[1, "edit", 2].tpot_p50_ns == pytest.approx(12 / 1.75 * MS, rel=0.1)
    assert cells[1, "edit", 2].speedup.value == pytest.approx(10 * 1.75 / 12, rel=0.1)
