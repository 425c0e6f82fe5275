"""Lengths that were not measured, from those on both sides: by hand, and against measuring them."""

import numpy as np
import pytest

from tests.measure.made_records import MS, WORKED, record, run
from tests.tuning.test_predicted_times import TOKENS, Bench, prompts_of
from toolkit.measure.run import EncodedPrompt
from toolkit.measure.trace_records import trace_of
from toolkit.recipe.objective import Objective
from toolkit.tuning.between import Promise, between, promises
from toolkit.tuning.grid import Grid
from toolkit.tuning.summary import summarise


def test_the_worked_trace_says_which_tokens_were_foreseen():
    # Steps of 3 + 1, 0 + 1 and 2 + 1 tokens: the last of each is one that was not foreseen.
    found = trace_of(WORKED, last=0.5)
    assert found.accept[:, 0].tolist() == [1, 1, 1, 0, 0, 1, 1, 0]
    assert found.accept[5].tolist() == [1, 1, 0, 0]  # and past the end nothing
    assert found.offered.tolist() == [4] * 8


def test_after_a_whole_draft_comes_a_token_of_which_nothing_is_known():
    whole = record(k=2, output_tokens=5, drafted_per_step=(2, 2), accepted_per_step=(2, 0))
    found = trace_of(whole, last=0.7)
    assert found.accept[:, 0].tolist() == [1, 1, 0.7, 0]


def test_a_draft_that_fell_short_offers_what_is_left_of_it():
    # Three tokens were found where eight were asked for, and two of them stood.
    short = record(k=8, output_tokens=5, drafted_per_step=(3, 0), accepted_per_step=(2, 0))
    found = trace_of(short, last=1.0)
    assert found.accept[:, 0].tolist() == [1, 1, 0, 0]
    assert found.offered.tolist() == [3, 2, 1, 0]


def test_one_token_has_no_trace():
    single = record(k=2, output_tokens=1, verify_steps=0, accepted_per_step=())
    assert trace_of(single, last=0.5).accept.shape == (0, 2)


def run_of(prompt, k, accepted, step_ms, tokens=25):
    """One request whose every step foresees `accepted` tokens, as far as it drafts."""
    stands = min(accepted, k)
    steps = -(-(tokens - 1) // (stands + 1))
    return run(
        record(
            k=k,
            prompt_id=prompt,
            output_tokens=1 + steps * (stands + 1),
            drafted_per_step=(k,) * steps,
            accepted_per_step=(stands,) * steps,
            e2e_ns=(100 + step_ms * steps) * MS,
        )
    )


def made(step_ms, accepted, ks):
    """A grid of three prompts and its rounds, measured at these lengths."""
    prompts = [EncodedPrompt(f"p{i}", "edit", (i, i)) for i in range(1, 4)]
    grid = Grid(tuple(ks), (1,), {"edit": prompts})
    rounds = {
        round.key: [run_of(round.prompts[0].id, k, accepted, step_ms(k)) for k in (0, *ks)]
        for round in grid.rounds()
    }
    return grid, rounds


def cells_of(grid, rounds):
    cells = summarise(
        rounds, ks=grid.ks, batches=grid.batches, domains=("edit",), objective=Objective()
    )
    return {cell.k: cell for cell in cells}


def test_a_text_whose_every_fourth_token_surprises_wants_three_drafts():
    """By hand: three stand of every draft that is longer, and a step takes 10 + k ms."""
    grid, rounds = made(lambda k: 10 + k, 3, (1, 8))
    found = between(grid, rounds, cells_of(grid, rounds), 25, Objective())
    # Of two drafts both stand, and then it starts on the third: 2 + 1 and 0 + 1 by turns.
    assert found[2] == pytest.approx(2 * 12 / 4 * MS, rel=0.15)
    for k in range(3, 8):
        assert found[k] == pytest.approx((10 + k) / 4 * MS, rel=0.01)
    [promise] = promises(grid, rounds, [*cells_of(grid, rounds).values()], 25, Objective())
    # Measured: k = 1 with 11 ms for two tokens, k = 8 with 18 for four.
    assert (promise.k, promise.best_k) == (3, 8)
    assert str(Promise(1, 3, 3.25 * MS, 8, 4.5 * MS)) == (
        "batch 1: k = 3, which was not measured, would take about 3.25 ms a token, 28% less than "
        "k = 8, by the lengths on both sides of it"
    )


def test_what_promises_nothing_is_not_mentioned():
    grid, rounds = made(lambda k: 10 + 10 * k, 3, (1, 8))
    found = between(grid, rounds, cells_of(grid, rounds), 25, Objective())
    assert min(found, key=found.get) == 3  # 40 ms for four tokens, where k = 1 and plain take 10
    assert found[3] == pytest.approx(10 * MS, rel=0.02)
    assert promises(grid, rounds, [*cells_of(grid, rounds).values()], 25, Objective()) == []


@pytest.mark.parametrize("ks", [(4,), (3, 4), (1, 2, 3)])
def test_without_two_lengths_and_room_between_them_nothing_is_said(ks):
    grid, rounds = made(lambda k: 10 + k, 3, ks)
    assert between(grid, rounds, cells_of(grid, rounds), 25, Objective()) == {}


def test_rounds_that_were_not_measured_are_not_missed():
    grid, rounds = made(lambda k: 10 + k, 3, (1, 8))
    some = dict([*rounds.items()][:2])
    assert len(between(grid, some, cells_of(grid, some), 25, Objective())) == 6


@pytest.mark.parametrize("name", ["draft_target", "ngram"])
def test_every_length_is_foretold_from_two(name, tmp_path):
    plan = Grid(tuple(range(1, 9)), (1, 4), {"d": prompts_of("d", 24, np.random.default_rng(1))})
    bench = Bench(name, plan)
    measured, _ = bench.measured(plan, tmp_path)
    for batch in plan.batches:
        here = {c.k: c for c in measured if c.batch_size == batch}
        found = between(plan, bench.rounds, {k: here[k] for k in (0, 2, 8)}, TOKENS, Objective())
        assert list(found) == [3, 4, 5, 6, 7]
        for k, ns in found.items():
            assert ns == pytest.approx(here[k].tpot_p50_ns, rel=0.05)
