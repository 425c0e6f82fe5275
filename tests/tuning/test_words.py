"""Plain words, and a plan for day and night, from cells whose numbers are known."""

import pytest

from tests.tuning.made_runs import rounds_of
from toolkit.recipe.objective import Objective
from toolkit.tuning.choose import choose
from toolkit.tuning.plans import plans, words
from toolkit.tuning.summary import summarise
from toolkit.tuning.words import in_words, off_point


def cells(*by_batch, batches=(1, 8)):
    """TPOT by draft length at each batch size, the same in four rounds."""
    rounds = {}
    for batch, tpots in zip(batches, by_batch, strict=True):
        rounds |= rounds_of(*[{k: [ms] * batch for k, ms in tpots.items()}] * 4)
    return summarise(rounds, ks=(4,), batches=batches, domains=("edit",), objective=Objective())


def test_where_it_stops_paying_lies_between_two_measured_batch_sizes():
    found = cells({0: 10, 4: 5}, {0: 10, 4: 20})
    point = off_point(choose(found))
    # The gain falls from 2 to 1/2 over three doublings: it is 1 half way, at the root of 8.
    assert point.about == 2
    assert in_words(found, choose(found)) == (
        "Speculation pays up to batch 1 and not at batch 8 (by a line through both, up to about "
        "2): verification is compute-bound; a step of k = 4 takes 2.00x a plain step and brings "
        "3.00 tokens."
    )


def test_a_gain_that_only_fades_is_not_carried_beyond_what_was_measured():
    point = off_point(choose(cells({0: 10, 4: 5}, {0: 10, 4: 10})))
    assert point.about == 1


def test_it_may_pay_everywhere_or_nowhere():
    everywhere = cells({0: 10, 4: 5}, {0: 10, 4: 5})
    assert in_words(everywhere, choose(everywhere)) == (
        "Speculation pays up to batch 8, the largest that was measured."
    )
    nowhere = cells({0: 10, 4: 20}, {0: 10, 4: 20})
    assert in_words(nowhere, choose(nowhere)).startswith(
        "Speculation does not pay at any batch size measured: verification is compute-bound"
    )


def test_nothing_is_said_while_nothing_is_decided():
    found = summarise(
        rounds_of({0: [10], 4: [5]}), ks=(4,), batches=(1,), domains=("edit",),
        objective=Objective(),
    )  # fmt: skip
    assert in_words(found, choose(found)) == ""


def test_day_and_night_part_where_latency_and_throughput_do():
    # Ten of eleven requests gain much, so the median TPOT gains; the batch waits for the last.
    rounds = rounds_of(*[{0: [10.0] * 11, 4: [4.0] * 10 + [40.0]}] * 4)
    found = summarise(rounds, ks=(4,), batches=(11,), domains=("edit",), objective=Objective())
    day, night = plans(found, Objective(no_domain_slower=False))
    assert (day.name, day.schedule) == ("day", ((11, 4),))
    assert (night.name, night.schedule) == ("night", ((11, 0),))
    # 121 tokens in 200 ms.
    assert night.tokens_per_s == pytest.approx(605)
    assert words([day, night]) == (
        "Day (TPOT p50): k = 4 from batch 11 on. Night (tokens/s): off from batch 11 on."
    )
    assert plans(cells({0: 10, 4: 5}, {0: 10, 4: 5}), Objective()) == []
