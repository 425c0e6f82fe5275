"""What is measured after a prediction: a share of the rounds, few lengths, and not for long."""

from dataclasses import replace

import pytest

from tests.tuning.made_runs import round_of
from tests.tuning.test_grid import grid
from tests.tuning.test_predict import predicted
from toolkit.recipe.objective import Objective
from toolkit.tuning.choose import choose
from toolkit.tuning.confirm import ConfirmGrid, confirm_grid, contested, widened
from toolkit.tuning.intervals import Interval


def test_only_a_share_of_the_rounds_confirms_each_with_the_lengths_of_its_batch():
    plan = grid(24, batches=(1, 8), ks=(1, 2, 3, 4))
    confirm = ConfirmGrid((1, 2, 3), (1, 8), plan.domains, 0, at={1: (2, 3), 8: (1, 2)})
    rounds = confirm.rounds()
    counts = {
        (domain, batch): sum((r.domain, r.batch_size) == (domain, batch) for r in rounds)
        for domain in plan.domains
        for batch in (1, 8)
    }
    assert counts == {("code", 1): 4, ("edit", 1): 4, ("code", 8): 1, ("edit", 8): 1}
    assert {r.key for r in rounds} <= {r.key for r in plan.rounds()}
    for round in rounds:
        assert sorted(confirm.order(round)) == [0, *confirm.at[round.batch_size]]


def test_neighbours_are_measured_only_where_the_prediction_cannot_tell_them_apart():
    plan = grid(8, batches=(1,), ks=(2, 4), domains=("edit",))
    # Always accepted: 10 / 4 against 10 / 2.8 ms. Four is far ahead.
    cells = list(predicted(plan, {}).values())
    confirm = confirm_grid(plan, cells, choose(cells), Objective())
    assert confirm.at == {1: (4,)}
    # Never accepted: 10 / 12 against 10 / 14. Nearly half of the drafts: close to each other.
    half = list(predicted(plan, {p.id: 0.62 for p in plan.domains["edit"]}).values())
    assert confirm_grid(plan, half, choose(half), Objective()).at == {1: (2, 4)}


def test_of_two_neighbours_that_come_near_the_better_is_measured():
    plan = grid(8, batches=(1,), ks=(1, 2, 4), domains=("edit",))
    speedups = {1: 1.97, 2: 2.0, 4: 1.98}
    cells = [
        cell
        if cell.plain
        else replace(cell, speedup=Interval(speedups[cell.k], speedups[cell.k] - 0.1, 2.2))
        for cell in predicted(plan, {}).values()
    ]
    assert confirm_grid(plan, cells, choose(cells), Objective()).at == {1: (2, 4)}


def test_what_may_gain_more_is_measured_beside_what_surely_gains():
    plan = grid(8, batches=(1,), ks=(1, 2, 4), domains=("edit",))
    gains = {1: Interval(1.2, 1.1, 1.3), 2: Interval(1.3, 1.08, 1.44), 4: Interval(1.32, 0.96, 1.5)}
    cells = [
        cell if cell.plain else replace(cell, speedup=gains[cell.k])
        for cell in predicted(plan, {}).values()
    ]
    [choice] = choose(cells)
    assert (choice.k, choice.hope.k) == (2, 4)
    assert confirm_grid(plan, cells, [choice], Objective()).at == {1: (2, 4)}
    # Measured, it is sure: then it is taken, although another one came out a little better.
    sure = {2: Interval(1.36, 1.1, 1.5), 4: Interval(1.34, 1.1, 1.6)}
    measured = [c if c.plain else replace(c, speedup=sure[c.k]) for c in cells if c.k != 1]
    [confirmed] = choose(measured, expected={(1, "edit"): choice.hope.k})
    assert confirmed.k == 4


def choices_of(plan, verdicts, high=2.0):
    """One for each batch size over all prompts; `high`: of the interval of the gain."""
    cells = choose(list(predicted(plan, {}).values()))
    like = {choice.batch_size: choice for choice in cells if choice.best.pooled}
    return [
        replace(like[batch], verdict=verdict, gain=Interval(min(1.5, high), 0.9, high))
        for batch, verdict in verdicts.items()
    ]


def test_more_rounds_decide_where_few_speak_against_the_prediction():
    plan = grid(16, batches=(1, 2), ks=(2, 4), domains=("edit",))
    confirm = ConfirmGrid((4,), (1, 2), plan.domains, 0, at={1: (4,), 2: (4,)})
    on = choices_of(plan, {1: "on", 2: "on"})
    assert contested(confirm, on, on) == []
    assert contested(confirm, on, choices_of(plan, {1: "on", 2: "off"})) == [2]
    assert contested(confirm, choices_of(plan, {1: "off", 2: "on"}), on) == [1]
    # Surely slower is surely off.
    assert contested(confirm, on, choices_of(plan, {1: "off", 2: "off"}, high=0.97)) == []
    assert contested(confirm, on, choices_of(plan, {1: "undecided", 2: "on"})) == []


def test_twice_as_many_rounds_up_to_half_of_them():
    plan = grid(64, batches=(1, 2), ks=(2, 4), domains=("edit",))
    confirm = ConfirmGrid((4,), (1, 2), plan.domains, 0, at={1: (4,), 2: (4,)})
    on, off = choices_of(plan, {1: "on", 2: "on"}), choices_of(plan, {1: "on", 2: "off"})
    counts, known = [], set()
    while True:
        rounds = confirm.rounds()
        assert known <= {round.key for round in rounds}  # what was measured stays measured
        known = {round.key for round in rounds}
        counts.append([sum(round.batch_size == batch for round in rounds) for batch in (1, 2)])
        if not (batches := contested(confirm, on, off)):
            break
        confirm = widened(confirm, batches)
    assert counts == [[8, 4], [8, 8], [8, 16]]


@pytest.mark.parametrize(("wild", "settled"), [(1.0, True), (1.5, False)])
def test_a_batch_size_is_done_when_its_interval_is_tight(wild, settled):
    plan = grid(24, batches=(2,), ks=(2, 4), domains=("edit",))
    confirm = ConfirmGrid((4,), (2,), plan.domains, 0, at={2: (4,)})
    rounds = confirm.rounds()
    assert len(rounds) == 2
    tpots = [{0: [10.0, 10.0], 4: [5.0, 5.0]}, {0: [10.0, 10.0], 4: [5.0 * wild, 5.0]}]
    done = {r.key: round_of(t, name=r.key) for r, t in zip(rounds, tpots, strict=True)}
    assert not confirm.settled(rounds[0], {})
    assert not confirm.settled(rounds[0], {rounds[0].key: done[rounds[0].key]})
    assert confirm.settled(rounds[0], done) == settled
    assert not plan.settled(rounds[0], done)
