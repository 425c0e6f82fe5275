"""A trace held against a grid, and two choices against each other, by numbers of our own."""

from dataclasses import asdict

import pytest

from bench.trace import compare, paired_ratio, pooled_tpots, quickest
from tests.tuning.made_runs import rounds_of
from toolkit.recipe.objective import Objective
from toolkit.tuning.summary import summarise


def result(tpots, chosen):
    """Three rounds alike; k -> milliseconds a token."""
    rounds = rounds_of(*[{k: [ms] for k, ms in tpots.items()}] * 3)
    cells = summarise(rounds, ks=(2, 4), batches=(1,), domains=["edit"], objective=Objective())
    return {
        "summary": [asdict(cell) for cell in cells],
        "choices": [{"domain": "edit", "batch_size": 1, "k": chosen}],
        "records": [asdict(r) for runs in rounds.values() for run in runs for r in run.requests],
        "runs": [
            {"round": r.round, "k": r.k, "wall_ns": run.wall_ns, "emitted_tokens": 10}
            for runs in rounds.values()
            for run in runs
            for r in run.requests
        ],
    }


def test_predictions_are_held_against_speedups_and_times():
    grid = {**result({0: 10, 2: 5, 4: 8}, 2), "wall_s": 60.0}
    expected = {**result({0: 12, 2: 6, 4: 8.4}, 4), "generated_tokens": 7, "step_time_tokens": 8}
    trace = {
        "trace": expected,
        "choices": expected["choices"],
        "runs": [{"emitted_tokens": 5}],
        "wall_s": 6.0,
    }
    found = compare(trace, [grid])
    assert found["tokens"] == {"trace": 20, "grid": 90}
    assert found["chosen"] == [{"batch": 1, "trace": 4, "predicted": 4, "grid": 2}]
    # 2 for 2, and 12 / 8.4 for 10 / 8.
    assert (found["speedups"]["points"], found["speedups"]["within_10_percent"]) == (2, 0.5)
    assert found["speedups"]["worst_error"] == pytest.approx(12 / 8.4 / 1.25 - 1)
    clock, quiet = found["by_the_clock"], found["undisturbed"]
    assert clock["within_10_percent"] == pytest.approx(1 / 3)  # 20, 20 and 5 % off
    assert clock["worst_error"] == pytest.approx(0.2)
    # Nothing was disturbed; over the 1.2 of plain decoding the predictions are 10, 5 and 7.
    assert quiet["predictions_divided_by"] == pytest.approx(1.2)
    assert quiet["within_10_percent"] == pytest.approx(2 / 3)
    assert quiet["worst_error"] == pytest.approx(7 / 8 - 1)
    for judged in (clock, quiet):
        [choice] = judged["choices"]
        assert (choice["fastest"], choice["above_grid"]) == (2, pytest.approx(0.6))


def test_of_repeated_grids_each_run_counts_where_it_was_quickest():
    # Once plain decoding was disturbed, once k = 2, which either grid alone would choose wrongly.
    first = {**result({0: 20, 2: 5, 4: 8}, 2), "wall_s": 60.0}
    second = {**result({0: 10, 2: 9, 4: 8}, 4), "wall_s": 90.0}
    expected = {**result({0: 10, 2: 5, 4: 8}, 2), "generated_tokens": 7, "step_time_tokens": 8}
    trace = {**expected, "trace": expected, "wall_s": 6.0}
    found = compare(trace, [first, second])
    assert found["seconds"] == {"trace": 6.0, "grid": 60.0}
    assert found["by_the_clock"]["within_10_percent"] == 1.0
    assert found["by_the_clock"]["worst_error"] == pytest.approx(0.0)
    assert found["speedups"]["within_10_percent"] == 1.0
    assert len(quickest([first, second])) == len(first["records"])
    # 20 for 10, 5 for 9, 8 for 8: a third; k = 2 is 9 where 8 is the lowest. And the other way.
    ahead, back = found["repeatable"]
    assert (ahead["grid"], ahead["by"], back["grid"], back["by"]) == (1, 2, 2, 1)
    assert ahead["within_10_percent"] == back["within_10_percent"] == pytest.approx(1 / 3)
    assert ahead["worst_error"] == pytest.approx(1.0)
    assert [c["above_fastest"] for c in ahead["choices"]] == pytest.approx([9 / 8 - 1])
    assert [c["above_fastest"] for c in back["choices"]] == pytest.approx([8 / 5 - 1])


def test_a_single_grid_has_nothing_to_repeat():
    grid = {**result({0: 10, 2: 5, 4: 8}, 2), "wall_s": 60.0}
    trace = {**grid, "trace": {**grid, "generated_tokens": 7}}
    assert compare(trace, [grid])["repeatable"] == []


def test_requests_are_compared_with_themselves():
    # The medians are 12 and 12; of the same requests k = 4 takes 1.2, 1.5 and 0.5 times.
    rounds = rounds_of({2: [10.0], 4: [12.0]}, {2: [12.0], 4: [18.0]}, {2: [14.0], 4: [7.0]})
    records = [asdict(r) for runs in rounds.values() for run in runs for r in run.requests]
    tpots = pooled_tpots(records)
    assert sorted(ns / 1e6 for ns in tpots[4].values()) == pytest.approx([7, 12, 18])
    found = paired_ratio(tpots[4], tpots[2])
    assert found.value == pytest.approx(1.2)
    assert (found.low, found.high) == pytest.approx((0.5, 1.5))


def test_a_request_without_a_second_token_has_no_tpot():
    rounds = rounds_of({2: [10.0], 4: [12.0]}, {2: [12.0], 4: [18.0]})
    records = [asdict(r) for runs in rounds.values() for run in runs for r in run.requests]
    records[0]["output_tokens"] = 1
    assert {k: len(found) for k, found in pooled_tpots(records).items()} == {2: 1, 4: 2}
