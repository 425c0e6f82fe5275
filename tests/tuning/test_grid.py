"""The measuring plan: complete, paired, without repetition, and the same when planned again."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.measure.run import EncodedPrompt
from toolkit.tuning.grid import Grid, missing


def grid(prompts=12, batches=(1, 2, 4), ks=(2, 3, 4), domains=("code", "edit"), seed=0):
    return Grid(
        tuple(ks),
        tuple(batches),
        {
            name: [EncodedPrompt(f"{name}-{i}", name, (d, i)) for i in range(prompts)]
            for d, name in enumerate(domains)
        },
        seed=seed,
    )


@settings(max_examples=40, deadline=None)
@given(prompts=st.integers(4, 30), seed=st.integers(0, 1000))
def test_no_prompt_is_used_twice_at_a_point_and_none_that_fills_a_batch_is_left_out(prompts, seed):
    plan = grid(prompts, seed=seed)
    for batch in plan.batches:
        for domain in plan.domains:
            rounds = [r for r in plan.rounds() if (r.domain, r.batch_size) == (domain, batch)]
            used = Counter(prompt.id for round in rounds for prompt in round.prompts)
            assert set(used.values()) == {1}
            assert len(used) == prompts - plan.left_over(domain, batch)
            assert all(len(round.prompts) == batch for round in rounds)


def test_the_plan_and_the_orders_are_the_same_when_made_again():
    first, again = grid(), grid()
    assert first.rounds() == again.rounds()
    assert [first.order(r) for r in first.rounds()] == [again.order(r) for r in again.rounds()]
    assert grid(seed=1).rounds() != first.rounds()


def test_every_round_has_plain_decoding_and_every_k_in_an_order_of_its_own():
    plan = grid()
    orders = [tuple(plan.order(round)) for round in plan.rounds()]
    assert {tuple(sorted(order)) for order in orders} == {(0, 2, 3, 4)}
    assert len(set(orders)) > 10  # of 24 possible ones
    # Plain decoding is not always first: on a drifting machine that would favour one side.
    assert {order.index(0) for order in orders} == {0, 1, 2, 3}


def test_every_point_is_spread_over_the_whole_run():
    plan = grid(prompts=24)
    rounds = plan.rounds()
    for batch in plan.batches:
        places = [i for i, r in enumerate(rounds) if (r.domain, r.batch_size) == ("edit", batch)]
        middle = len(rounds) / 2
        assert abs(sum(place < middle for place in places) - len(places) / 2) <= 1


def test_more_prompts_keep_the_rounds_of_the_first_ones():
    few, many = grid(prompts=8), grid(prompts=12)
    done = {round.key: object() for round in few.rounds()}
    left = list(missing(many.rounds(), done))
    assert len(left) == len(many.rounds()) - len(few.rounds())


def test_a_round_is_known_by_its_batch_and_its_prompts():
    keys = {round.key for round in grid().rounds()}
    assert len(keys) == len(grid().rounds())
    renamed = grid(domains=("code", "rewrite"))
    assert len(keys & {round.key for round in renamed.rounds()}) == len(keys) / 2
