"""Step times that a trace measured reach the policy that decides by them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.tuning.test_results import recipe, results
from toolkit.measure.step_times import StepTime, StepTimes
from toolkit.recipe.load import dump_recipe, load_recipe
from toolkit.speculation.draft_length import Adaptive, Throughput, draft_length_policy
from toolkit.tuning.tuned_recipe import step_time_entries, tuned_recipe, tuned_yaml

MS = 1_000_000


def step(batch, drafted, context, total, draft):
    """All in milliseconds."""
    return StepTime(
        batch, drafted, context, 3, (total - draft) * MS, draft * MS, 0.0, total * MS, 0.0
    )


# In the mean of contexts 100 and 300: 11 ms plainly and 17 with four tokens, 5 of them drafting.
TIMES = StepTimes(
    (
        step(1, 0, 100, 10, 0),
        step(1, 0, 300, 12, 0),
        step(1, 4, 100, 15, 4),
        step(1, 4, 300, 19, 6),
        step(8, 0, 100, 20, 0),
        step(8, 0, 300, 20, 0),
        step(8, 4, 100, 60, 8),
        step(8, 4, 300, 60, 8),
    ),
    {1: 1.0, 8: 1.0},
    {1: 0.0, 8: 0.0},
)
TABLE = {(1, 0): (11, 0), (1, 4): (17, 5), (8, 0): (20, 0), (8, 4): (60, 8)}


def traced():
    return replace(results(), trace=SimpleNamespace(times=TIMES, trials=()))


def with_throughput():
    given = recipe().model_dump(mode="json")
    entries = [{"batch": 1, "draft_len": 0, "ms": 99.0}]
    length = {"policy": "throughput", "step_times": entries, "min_speed": 0.5}
    given["speculation"]["draft_length"] = length
    return type(recipe()).model_validate(given)


def test_one_word_turns_the_tuned_recipe_into_one_that_decides_by_them(tmp_path):
    path = tmp_path / "tuned.yaml"
    path.write_text(tuned_yaml(recipe(), traced()))
    tuned = load_recipe(str(path))
    assert tuned.speculation.draft_length.policy == "fixed"
    assert "was not compared with what stands here" in path.read_text()
    switched = load_recipe(str(path), ["speculation.draft_length.policy=throughput"])
    policy = draft_length_policy(switched.speculation)
    assert isinstance(policy, Throughput)
    assert policy.costs.points == TABLE
    assert policy.max_draft_len == tuned.speculation.max_draft_len == 4


@pytest.mark.parametrize(
    ("schedule", "adaptive", "policy"),
    [
        ([(1, 4)], None, "fixed"),
        ([(1, 4), (8, 0)], None, "schedule"),
        ([(1, 4)], Adaptive(2, 8), "adaptive"),
    ],
)
def test_they_go_with_every_policy_that_can_win(schedule, adaptive, policy, tmp_path):
    tuned = tuned_recipe(recipe(), schedule, adaptive, TIMES)
    length = tuned.speculation.draft_length
    assert length.policy == policy
    assert {(e.batch, e.draft_len): (e.ms, e.draft_ms) for e in length.step_times} == TABLE
    # One word turns each of them into one that decides by the times.
    path = tmp_path / "tuned.yaml"
    path.write_text(dump_recipe(tuned))
    switched = load_recipe(str(path), ["speculation.draft_length.policy=throughput"])
    assert isinstance(draft_length_policy(switched.speculation), Throughput)


def test_times_of_a_busy_machine_still_make_a_recipe():
    """Its medians need not fit together, nor lie on a line along the context."""
    odd = (
        StepTime(1, 0, 100, 3, 9.0 * MS, 0.0, 0.0, 10.0 * MS, 3.0),
        StepTime(1, 0, 900, 3, 0.2 * MS, 0.0, 0.0, 0.2 * MS, 3.0),
        StepTime(1, 4, 101, 3, 5.0 * MS, 7.0 * MS, 0.0, 6.0 * MS, 3.0),
    )
    entries = step_time_entries(StepTimes(odd, {1: 1.0}, {1: 0.0}))
    # (10 + 0.2) / 2; and five of verifying with seven of drafting take twelve at least.
    assert [(e.ms, e.draft_ms) for e in entries] == [(5.1, 0.0), (12.0, 7.0)]


def test_a_recipe_that_asks_for_throughput_keeps_it_with_new_times(tmp_path):
    path = tmp_path / "tuned.yaml"
    path.write_text(tuned_yaml(with_throughput(), traced()))
    tuned = load_recipe(str(path)).speculation
    assert (tuned.draft_length.policy, tuned.draft_length.min_speed) == ("throughput", 0.5)
    policy = draft_length_policy(tuned)
    assert isinstance(policy, Throughput)
    assert policy.costs.points == TABLE
    assert "was not compared" in path.read_text()


def test_without_a_trace_the_recipes_own_times_stay():
    tuned = tuned_recipe(with_throughput(), [(1, 2)]).speculation
    assert [entry.ms for entry in tuned.draft_length.step_times] == [99.0]
    assert (tuned.draft_length.policy, tuned.max_draft_len) == ("throughput", 2)


@pytest.mark.parametrize("schedule", [None, [(1, 0)]])
def test_where_nothing_is_drafted_there_are_none(schedule):
    tuned = tuned_recipe(recipe(), schedule, None, TIMES).speculation
    assert tuned.draft_length.step_times == ()
