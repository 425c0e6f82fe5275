"""On, off or undecided; and what the verdict says."""

from dataclasses import replace

import pytest

from tests.tuning.made_runs import rounds_of
from toolkit.recipe.objective import Objective
from toolkit.tuning.choose import by_prediction, choose, schedule, verdict
from toolkit.tuning.summary import summarise


def summary(rounds, ks=(2, 4), batches=(1,), domains=("edit",)):
    return summarise(rounds, ks=ks, batches=batches, domains=domains, objective=Objective())


def test_the_fastest_of_those_that_surely_beat_plain_is_chosen():
    # k = 2: always twice as fast. k = 4: 5 times as fast half of the time, half as fast otherwise.
    cells = summary(rounds_of(*[{0: [10], 2: [5], 4: [2]}, {0: [10], 2: [5], 4: [20]}] * 4))
    (choice,) = choose(cells)
    assert (choice.verdict, choice.k) == ("on", 2)
    assert "k = 2 speeds decoding up by 2.00 (95 % interval 2.00 to 2.00)" in choice.reason


def test_off_when_no_interval_lies_above_one():
    cells = summary(rounds_of(*[{0: [10], 2: [10], 4: [12]}] * 4))
    (choice,) = choose(cells)
    assert (choice.verdict, choice.k) == ("off", 0)
    assert "k = 2 comes to 1.00" in choice.reason  # the one that came nearest
    assert verdict([choice]) == "Over all prompts: off at batch 1."
    assert schedule([choice]) == [(1, 0)]


def test_a_length_that_makes_a_domain_slower_is_not_taken_for_all_of_them():
    # k = 4 gains most over all prompts but loses in chat; k = 2 gains a little everywhere.
    rounds = {
        **rounds_of(*[{0: [10], 2: [8], 4: [2]}] * 4, domain="edit"),
        **rounds_of(*[{0: [10], 2: [8], 4: [20]}] * 2, domain="chat"),
    }
    cells = summary(rounds, domains=("edit", "chat"))
    pool = next(c for c in choose(cells) if c.domain == "all")
    assert (pool.verdict, pool.k) == ("on", 2)
    assert "k = 4 would gain 5.00x over all prompts but makes chat slower (0.50x)" in pool.note
    free = choose(cells, Objective(no_domain_slower=False))
    assert next(c for c in free if c.domain == "all").k == 4
    # A domain that is served apart may take what suits it.
    assert next(c for c in choose(cells) if c.domain == "edit").k == 4


def test_what_a_prediction_expects_is_taken_where_it_surely_pays():
    cells = summary(rounds_of(*[{0: [10], 2: [5], 4: [4]}] * 4))
    assert choose(cells, expected={(1, "edit"): 2})[0].k == 2
    lost = summary(rounds_of(*[{0: [10], 2: [11], 4: [4]}] * 4))
    assert choose(lost, expected={(1, "edit"): 2})[0].k == 4


def test_predictions_rank_by_tpot_itself_and_measurements_by_pairs():
    # k = 2 halves every request: 2x, p50 10. k = 4: 1.11x, 1.82x and 3.75x, so 1.82x, but p50 9.
    cells = summary(
        rounds_of(*[{0: [10, 20, 30], 2: [5, 10, 15], 4: [9, 11, 8]}] * 4), batches=(3,)
    )
    (measured,) = choose(cells)
    assert (measured.k, measured.hope.k) == (2, 2)
    (predicted,) = choose(cells, rank=by_prediction(Objective()))
    assert (predicted.k, predicted.hope.k) == (4, 4)
    assert predicted.gain.value == pytest.approx(20 / 11)
    assert by_prediction(Objective(metric="output_throughput")) is None


def test_a_low_tpot_is_not_taken_where_it_may_be_slower_than_plain_decoding():
    # k = 2: 1.1x to 1.3x, p50 15. k = 4: p50 12, but two requests of three lose.
    cells = summary(
        rounds_of(*[{0: [10, 20, 30], 2: [9, 15, 25], 4: [12, 22, 8]}] * 4), batches=(3,)
    )
    (choice,) = choose(cells, rank=by_prediction(Objective()))
    assert (choice.verdict, choice.k) == ("on", 2)


def limited(limit, times):
    objective = Objective(metric="throughput_under_tpot", tpot_limit_ms=limit)
    cells = summarise(
        rounds_of(*[times] * 4), ks=(2, 4), batches=(1,), domains=("edit",), objective=objective
    )
    return choose(cells, objective)[0]


def test_a_limit_on_tpot_rules_lengths_out_and_may_ask_for_speculation_alone():
    times = {0: [10], 2: [8], 4: [4]}
    assert limited(5, times).k == 4
    choice = limited(9, {0: [10], 2: [8], 4: [12]})
    assert (choice.verdict, choice.k) == ("on", 2)  # plain decoding would exceed the limit
    assert limited(3, times).verdict == "off"
    assert "k = 4 would gain" in limited(3, times).note


def test_a_tie_goes_to_the_shorter_draft():
    (choice,) = choose(summary(rounds_of(*[{0: [10], 2: [5], 4: [5]}] * 4)))
    assert choice.k == 2


def test_undecided_with_a_single_round():
    cells = summary(rounds_of({0: [10], 2: [5], 4: [5]}))
    (choice,) = choose(cells)
    assert (choice.verdict, choice.k) == ("undecided", 0)
    assert schedule([choice]) is None  # not knowing is no reason to turn it off


def test_every_batch_size_gets_the_draft_length_that_won_there():
    rounds = {
        # Batch 1: k = 4 three times as fast, k = 2 twice.
        **rounds_of(*[{0: [12], 2: [6], 4: [4]}] * 3),
        # Batch 2: k = 4 three times slower, k = 2 one and a half times as fast.
        **rounds_of(*[{0: [12, 12], 2: [8, 8], 4: [36, 36]}] * 3),
    }
    cells = summary(rounds, batches=(1, 2))
    choices = choose(cells)
    assert [choice.k for choice in choices] == [4, 2]
    assert schedule(choices) == [(1, 4), (2, 2)]
    assert schedule([choices[0], replace(choices[0], batch_size=2)]) == [(1, 4)]  # no change


def test_the_verdict_names_the_domain_that_gains_although_the_rest_loses():
    rounds = {
        **rounds_of(*[{0: [10], 2: [5], 4: [4]}] * 3, domain="edit"),
        **rounds_of(*[{0: [10], 2: [11], 4: [12]}] * 9, domain="chat"),
    }
    choices = choose(summary(rounds, domains=("edit", "chat")))
    assert {(c.domain, c.verdict) for c in choices} == {
        ("edit", "on"), ("chat", "off"), ("all", "off"),
    }  # fmt: skip
    assert verdict(choices) == (
        "Over all prompts: off at batch 1. "
        "Speculation helps most on edit: k = 4 at batch 1 (2.50x, 2.50 to 2.50)."
    )


def test_the_verdict_names_every_batch_size():
    rounds = {
        **rounds_of(*[{0: [12], 2: [6]}] * 3),
        **rounds_of(*[{0: [12, 12], 2: [14, 14]}] * 3),
        **rounds_of(*[{0: [12] * 3, 2: [24] * 3}] * 3),
    }
    cells = summary(rounds, ks=(2,), batches=(1, 2, 3))
    assert verdict(choose(cells)) == (
        "Over all prompts: k = 2 at batch 1 (2.00x, 2.00 to 2.00); off at batch 2 and 3."
    )


def test_a_domain_without_any_round_leaves_the_pool_open():
    cells = summary(rounds_of(*[{0: [10], 2: [5], 4: [4]}] * 3), domains=("edit", "chat"))
    choices = choose(cells)
    assert [(choice.domain, choice.k) for choice in choices] == [("edit", 4)]
    assert schedule(choices) is None
    assert verdict(choices) == (
        "Over all prompts: too little was measured for a verdict. "
        "Speculation helps most on edit: k = 4 at batch 1 (2.50x, 2.50 to 2.50)."
    )
