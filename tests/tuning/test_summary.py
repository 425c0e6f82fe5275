"""Cells against numbers worked out by hand."""

import pytest

from tests.measure.made_records import MS
from tests.tuning.made_runs import rounds_of
from toolkit.recipe.objective import Objective
from toolkit.tuning.objective import Gpus
from toolkit.tuning.summary import summarise

THREE = rounds_of(
    {0: [10.0], 2: [5.0]},
    {0: [10.0], 2: [8.0]},
    {0: [12.0], 2: [12.0]},
)


def cells(rounds, domains=("edit",), ks=(2,), batches=(1,), **objective):
    return summarise(
        rounds, ks=ks, batches=batches, domains=domains, objective=Objective(**objective)
    )


def test_speedup_is_the_median_of_paired_ratios():
    plain, drafted = cells(THREE)
    # Ratios by prompt: 10/5 = 2, 10/8 = 1.25, 12/12 = 1.
    assert drafted.speedup.value == pytest.approx(1.25)
    assert 1 <= drafted.speedup.low < drafted.speedup.high <= 2
    assert plain.speedup is None


def test_speedup_at_another_percentile_is_what_that_share_of_requests_reaches():
    (_, drafted) = cells(THREE, percentile=99)
    # The 1 % quantile of 1, 1.25, 2 lies 2 % of the way from the first to the second.
    assert drafted.speedup.value == pytest.approx(1 + 0.02 * 0.25)


def test_a_draft_on_gpus_of_its_own_must_earn_them():
    rounds = rounds_of(*[{0: [10.0], 2: [5.0]}] * 3)
    found = summarise(
        rounds,
        ks=(2,),
        batches=(1,),
        domains=("edit",),
        objective=Objective(metric="gpu_seconds"),
        gpus=Gpus(1, 2),
    )
    # Eleven tokens in 100 + 10 x 10 ms, and in 100 + 10 x 5 ms: throughput 4/3, on twice the GPUs.
    assert found[1].gains.throughput.value == pytest.approx(200 / 150)
    assert found[1].speedup.value == pytest.approx(200 / 150 / 2)
    assert found[0].gpu_seconds_per_million_tokens == pytest.approx(0.2 / 11 * 1e6)
    assert found[1].gpu_seconds_per_million_tokens == pytest.approx(2 * 0.15 / 11 * 1e6)


def test_times_and_counts():
    plain, drafted = cells(THREE)
    assert (plain.rounds, plain.requests) == (3, 3)
    assert drafted.tpot_p50_ns == pytest.approx(8 * MS)
    assert drafted.tpot_p99_ns == pytest.approx((8 + 0.98 * 4) * MS)
    assert drafted.ttft_p50_ns == 100 * MS
    # Three requests of five steps, two of two drafts accepted in each.
    assert (drafted.verify_steps, drafted.draft_tokens, drafted.accepted_tokens) == (15, 30, 30)
    assert drafted.acceptance_rate == 1.0
    assert drafted.acceptance_length == 3.0
    assert drafted.acceptance_by_position_joint == (1.0, 1.0)
    # 33 tokens in 150 + 180 + 220 ms.
    assert drafted.output_throughput == pytest.approx(33 / 0.550)
    assert plain.acceptance_rate is None  # nothing was drafted


def test_the_pool_of_all_domains_comes_last_in_each_batch():
    rounds = {**THREE, **rounds_of({0: [10.0], 2: [20.0]}, {0: [10.0], 2: [20.0]}, domain="code")}
    found = cells(rounds, domains=("edit", "code"))
    assert [(cell.domain, cell.k) for cell in found] == [
        ("edit", 0), ("edit", 2), ("code", 0), ("code", 2), ("all", 0), ("all", 2),
    ]  # fmt: skip
    # Ratios 2, 1.25, 1, 0.5, 0.5: the median is 1.
    assert found[-1].speedup.value == pytest.approx(1.0)


def test_a_batch_without_a_finished_round_has_no_cells():
    assert cells(THREE, batches=(1, 4)) == cells(THREE)


def test_throughput_as_the_objective():
    (_, drafted) = cells(THREE, metric="output_throughput")
    # Plain: 33 tokens in 200 + 200 + 220 ms; drafted: the same in 550 ms.
    assert drafted.speedup.value == pytest.approx(620 / 550)


def test_requests_of_a_single_token_have_no_ratio():
    from tests.measure.made_records import record, run

    single = {"output_tokens": 1, "e2e_ns": 100 * MS, "domain": "edit"}
    rounds = {
        **THREE,
        "short": [run(record(k=0, **single)), run(record(k=2, drafted_per_step=(), **single))],
    }
    (_, drafted) = cells(rounds)
    assert drafted.requests == 4
    assert drafted.speedup.value == pytest.approx(1.25)  # as without it
