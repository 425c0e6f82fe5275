"""Measuring with interruptions gives what measuring in one go gives."""

import pytest

from tests.measure.fake_loop import FakeClock, FakeLoop, endless
from tests.tuning.test_grid import grid
from toolkit.measure.run import Conditions, EncodedPrompt
from toolkit.recipe.schema import Sampling
from toolkit.tuning.journal import Journal
from toolkit.tuning.session import Outcome, Slot, joined, measure

WARM_UP = EncodedPrompt("warm-up", "warm-up", (7, 7))
CONDITIONS = Conditions(max_tokens=6, sampling=Sampling(), stop_tokens=frozenset())


def fake_loop():
    """Two tokens a step when speculating, one otherwise; 10 ms a step, 30 ms for prefill."""

    def step(request, number):
        drafted = request.draft_len or 0
        return ([number], 0, 0) if number == 0 or not drafted else ([number, 5], 1, drafted)

    return FakeLoop(FakeClock(), endless(step), lambda requests, first: 30 if first else 10)


def sit(directory, loop=None, plan=None, log=lambda line: None):
    plan, loop = plan or grid(prompts=5, batches=(1, 2)), loop or fake_loop()
    journal = Journal(directory, {"a": 1})
    return measure(
        loop, plan, CONDITIONS, journal, warm_up_prompt=WARM_UP, log=log, clock=loop.clock
    )


def test_everything_is_measured_in_the_planned_order(tmp_path):
    plan = grid(prompts=5, batches=(1, 2))
    outcome = sit(tmp_path, plan=plan)
    assert list(outcome.rounds) == [round.key for round in plan.rounds()]
    assert outcome.complete
    assert not outcome.interrupted
    for round in plan.rounds():
        assert [run.k for run in outcome.rounds[round.key]] == plan.order(round)


def test_warm_up_covers_every_point_and_is_not_recorded(tmp_path):
    loop = fake_loop()
    outcome = sit(tmp_path, loop)
    warm = [request.draft_len for request in loop.submitted if request.prompt == (7, 7)]
    # Batch 1 and batch 2, each with plain decoding and k = 2, 3, 4.
    assert warm == [0, 2, 3, 4, 0, 0, 2, 2, 3, 3, 4, 4]
    records = [r for runs in outcome.rounds.values() for run in runs for r in run.requests]
    assert {record.domain for record in records} == {"code", "edit"}


@pytest.mark.parametrize("step", [3, 60, 90, 150, 200])
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, step):
    whole = sit(tmp_path / "whole")
    loop = fake_loop()
    loop.fail_at = step
    first = sit(tmp_path / "parts", loop)
    assert first.interrupted
    assert not first.complete
    second = sit(tmp_path / "parts")
    assert second.resumed == len(first.rounds)
    assert second.complete
    assert second.rounds == whole.rounds
    assert list(second.rounds) == list(whole.rounds)


def test_a_finished_run_measures_nothing_again(tmp_path):
    sit(tmp_path)
    loop = fake_loop()
    again = sit(tmp_path, loop)
    assert again.resumed == again.planned
    assert loop.submitted == []


def test_rounds_of_prompts_that_are_not_asked_for_now_stay_out(tmp_path):
    sit(tmp_path, plan=grid(prompts=8, batches=(1, 2)))
    few = sit(tmp_path, plan=grid(prompts=4, batches=(1,)))
    assert (few.planned, few.resumed, few.complete) == (8, 8, True)


def test_one_line_per_round_says_where_it_is(tmp_path):
    lines = []
    outcome = sit(tmp_path, log=lines.append)
    assert len(lines) == outcome.planned == 14
    assert lines[0].startswith("round 1/14: ")
    # One token in 10 ms against two.
    assert "plain 10.0 ms a token, best 5.0 ms at k = " in lines[0]
    assert lines[-1].endswith("about 0 s left")


def test_two_sittings_are_one():
    first = Outcome({"a": [], "b": []}, 2, 1, False, [Slot("a", "n", 1.0, 3.0)])
    second = Outcome({"a": [], "b": [], "c": []}, 3, 2, False, [Slot("c", "n", 0.5, 1.0)])
    both = joined(first, second)
    assert (len(both.rounds), both.planned, both.resumed) == (3, 3, 1)  # b was measured just now
    assert [(slot.name, slot.start) for slot in both.timeline] == [("a", 1.0), ("c", 4.5)]
