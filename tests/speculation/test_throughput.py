"""Draft lengths of a step against trying them all, and what a request's past says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.speculation.table_model import FakeTableModel, random_table
from toolkit.recipe.schema import DraftLength, StepTimeEntry
from toolkit.speculation.draft_length import Fixed, Throughput, draft_length_policy
from toolkit.speculation.drafters.ngram import NGramDrafter, NGramSpeculation
from toolkit.speculation.interfaces import SpeculationStats
from toolkit.speculation.loop import Request, SpeculativeLoop
from toolkit.speculation.throughput import (
    BatchCost,
    StepCosts,
    best_lengths,
    predicted_acceptance,
)


def rate(lengths, acceptance, cost):
    tokens = [sum(a**i for i in range(n + 1)) for a, n in zip(acceptance, lengths, strict=True)]
    return sum(tokens) / cost.ms(sum(lengths) / len(lengths), max(lengths))


@pytest.mark.parametrize("draft_ms", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("seed", range(20))
def test_no_other_lengths_are_better(seed, draft_ms):
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(1, 5))
    acceptance = rng.uniform(0, 1, batch).tolist()
    most = rng.integers(0, 5, batch).tolist()
    verify = np.cumsum([10.0, *rng.uniform(0.1, 3.0, 4)])
    cost = BatchCost([0, 1, 2, 3, 4], verify.tolist(), [draft_ms * i for i in range(5)])
    best = max(
        rate(lengths, acceptance, cost)
        for lengths in itertools.product(*(range(m + 1) for m in most))
    )
    found = best_lengths(acceptance, most, cost)
    assert all(n <= m for n, m in zip(found, most, strict=True))
    assert rate(found, acceptance, cost) == pytest.approx(best, rel=1e-12)


COST = BatchCost([0, 8], [10.0, 26.0], [0.0, 0.0])  # 2 ms for a token of each request


def test_long_drafts_go_to_those_whose_drafts_stand():
    # 0.95 ** 3 = 0.86 is worth more than the first token of 0.8; 0.05 is never worth its time.
    lengths = best_lengths([0.95, 0.05, 0.8], [8, 8, 8], COST)
    assert lengths[0] > lengths[2] > lengths[1] == 0


def test_nobody_drafts_where_a_token_costs_as_much_as_it_brings():
    flat = BatchCost([0, 4], [10.0, 50.0], [0.0, 0.0])
    assert best_lengths([0.9, 0.9], [4, 4], flat) == [0, 0]


def test_the_slowest_keeps_its_share_of_plain_speed():
    acceptance, most = [0.99, 0.99, 0.99, 0.0], [8, 8, 8, 8]
    free = best_lengths(acceptance, most, COST)
    assert 10 / COST.ms(sum(free) / 4, max(free)) < 0.6
    fair = best_lengths(acceptance, most, COST, min_speed=0.8)
    assert 10 / COST.ms(sum(fair) / 4, max(fair)) >= 0.8
    assert sum(fair) > 0


def test_costs_between_measured_batches_and_lengths():
    points = {(1, 0): (10, 0), (1, 4): (18, 4), (3, 0): (20, 0), (3, 4): (60, 20)}
    cost = StepCosts(points).of(2)  # halfway: 15, and 39 of which 12 are for drafting
    assert cost.ms(0.0, 0) == 15.0
    assert cost.ms(4.0, 4) == 39.0
    assert cost.ms(2.0, 4) == pytest.approx(15 + (27 - 15) / 2 + 12)
    assert StepCosts(points).of(9).ms(0.0, 0) == 20.0


def stats(*steps: tuple[int, int]) -> SpeculationStats:
    return SpeculationStats(
        drafted_per_step=[drafted for drafted, _ in steps],
        accepted_per_step=[accepted for _, accepted in steps],
    )


def test_prediction_follows_the_last_steps_and_hopes_again_later():
    assert predicted_acceptance(stats()) == pytest.approx(0.7)
    # One step, 3 of 4: three stood, one did not. (1.4 + 3) / (2 + 4)
    assert predicted_acceptance(stats((4, 3))) == pytest.approx(4.4 / 6)
    assert predicted_acceptance(stats((4, 4))) == pytest.approx(5.4 / 6)  # nothing was refused
    poor = predicted_acceptance(stats(*[(4, 0)] * 20))
    assert poor < 0.2
    assert predicted_acceptance(stats(*[(4, 0)] * 20, *[(0, 0)] * 40)) > 0.65
    assert predicted_acceptance(stats(*[(4, 0)] * 20, *[(4, 4)] * 10)) > 0.7


ENTRIES = tuple(
    StepTimeEntry(batch=batch, draft_len=length, ms=10 + batch * length * price)
    for batch, price in ((1, 0.2), (8, 2.0))
    for length in (0, 4)
)


def policy() -> Throughput:
    length = DraftLength(policy="throughput", step_times=ENTRIES, min_speed=0.0)
    options = NGramSpeculation(drafter="ngram", max_draft_len=4, draft_length=length)
    found = draft_length_policy(options)
    assert isinstance(found, Throughput)
    return found


def test_a_loaded_step_drafts_less_than_a_lonely_one():
    class FakeActive:
        draft_len, stats = 4, SpeculationStats()

    alone = policy().plan([FakeActive()], 1)
    crowd = policy().plan([FakeActive()] * 8, 8)
    assert alone == [4]
    assert sum(crowd) / 8 < 2
    assert len(policy().plan([FakeActive()], 8)) == 1  # seven more read their prompts


def test_text_does_not_depend_on_it():
    table = random_table(4, 40)
    requests = [Request((i, i + 1, i, i + 1, i), 60) for i in range(3)]
    plain = SpeculativeLoop(FakeTableModel(table), None, Fixed(0)).generate(requests)
    found = SpeculativeLoop(FakeTableModel(table), NGramDrafter(), policy()).generate(requests)
    assert [o.tokens for o in found] == [o.tokens for o in plain]
    assert sum(o.stats.draft_tokens for o in found) > 0


def test_a_recipe_without_a_usable_table_is_refused():
    from toolkit.recipe.rules import _step_time_rules

    def problems(**length):
        options = NGramSpeculation(
            drafter="ngram", max_draft_len=4, draft_length=DraftLength.model_validate(length)
        )
        return [problem for _, problem in _step_time_rules(options)]

    assert problems(policy="throughput", step_times=ENTRIES) == []
    assert "empty" in problems(policy="throughput")[0]
    assert problems(policy="fixed", step_times=ENTRIES) == []  # one word from being used
    assert "twice" in problems(policy="throughput", step_times=(*ENTRIES, ENTRIES[0]))[0]
    assert "missing for batch 1" in problems(policy="throughput", step_times=ENTRIES[1:])[0]
