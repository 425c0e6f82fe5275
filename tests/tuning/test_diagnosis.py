"""Each symptom leads to its cause, with the numbers; a healthy run has none."""

import pytest

from tests.measure.made_records import record
from tests.tuning.test_predict import times
from tests.tuning.test_words import cells
from toolkit.measure.step_times import StepTime, StepTimes
from toolkit.tuning.diagnosis import Symptoms, diagnose

STEPS = 40


def records(accepted, *, k=4, drafted=None, **given):
    """One request of forty steps; `accepted` and `drafted` repeat."""
    return [
        record(
            k=k,
            output_tokens=200,
            verify_steps=STEPS,
            drafted_per_step=tuple((drafted or [k])[i % len(drafted or [k])] for i in range(STEPS)),
            accepted_per_step=tuple(accepted[i % len(accepted)] for i in range(STEPS)),
            **given,
        )
    ]


def causes(records=(), **given):
    given.setdefault("cells", ())
    return {d.cause: d for d in diagnose(Symptoms(records=list(records), **given))}


def test_a_healthy_run_has_no_diagnosis():
    assert causes(records([4, 3]), times=times(1), cells=cells({0: 10, 4: 5}, {0: 10, 4: 5})) == {}


def test_exactly_one_token_a_step_is_a_broken_drafter():
    [found] = causes(records([0])).values()
    assert found.symptom == "edit: acceptance_length is exactly 1.00"
    assert found.numbers == "0 of 160 draft tokens accepted"


def test_the_position_where_acceptance_falls_is_named():
    # Both first drafts stand always, a third one never.
    [found] = causes(records([2])).values()
    assert found.symptom == "edit: acceptance falls at position 3"
    assert found.cause == "drafts longer than 2 are mostly thrown away"
    assert found.numbers == "accepted by position, given all before: 100%, 100%, 0%"


def test_a_domain_that_the_drafter_does_not_know():
    found = causes(records([0, 0, 1]))["the drafter does not know this domain"]
    # Thirteen of forty.
    assert found.numbers == "accepted by position, given all before: 32%"


def test_lookup_that_finds_nothing():
    found = causes(records([0, 0, 3], drafted=[0, 0, 4]))
    text = found["lookup finds no earlier copy: the answer repeats neither prompt nor itself"]
    assert text.numbers == "27 of 40 steps had no draft"


def test_a_draft_that_costs_half_of_a_step():
    dear = StepTimes((StepTime(1, 4, 20, 3, 10.0, 10.0, 0.0, 20.0, 0.0),), {1: 1.0}, {1: 0.0})
    some = cells({0: 10, 4: 5}, {0: 10, 4: 5}, batches=(1, 2))[:2]
    found = causes(records([4, 3]), times=dear, cells=some)
    assert "drafting takes 50% of a step at batch 1" in (
        found["the draft is too expensive for its target"].numbers
    )


def test_verification_that_is_compute_bound():
    # All have five steps, so a step takes 10 against 30 ms, and 20 against 10 ms.
    found = causes(records([4, 3]), cells=cells({0: 30, 4: 10}, {0: 10, 4: 20}))
    numbers = found["verification is compute-bound"].numbers
    assert "takes 0.33x a plain step at batch 1, 2.00x a plain step at batch 8" in numbers


def test_outputs_that_go_in_circles():
    found = causes(records([4, 3], bigrams=60, unique_bigrams=5))
    assert found["degenerate loops: the output repeats itself"].numbers.startswith("1 of 1 outputs")


@pytest.mark.parametrize(
    ("templates", "cause"),
    [
        ({"target": "t", "draft": None}, "the draft is a base model, the target an instruct one"),
        ({"target": "t", "draft": "u"}, "the draft was trained on another chat template"),
        ({"target": None, "draft": "u"}, "the draft is an instruct model, the target a base one"),
    ],
)
def test_templates_that_differ(templates, cause):
    assert cause in causes(records([4, 3]), templates=templates)
    assert causes(records([4, 3]), templates={"target": "t", "draft": "t"}) == {}


def test_answers_that_begin_badly():
    many = [r for _ in range(4) for r in records([0] * 4 + [4] * 36)]
    found = causes(many)["template mismatch: the draft does not know how an answer starts"]
    assert found.numbers == (
        "0% of the drafts accepted in the first 4 steps of an answer, 100% later"
    )
