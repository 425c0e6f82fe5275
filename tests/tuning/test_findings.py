"""Each way to be fooled is noticed, and a clean run is left in peace."""

import pytest

from tests.measure.made_records import record
from tests.tuning.made_runs import rounds_of
from tests.tuning.test_grid import grid
from toolkit.recipe.objective import Objective
from toolkit.tuning.findings import Evidence, find
from toolkit.tuning.summary import summarise


def evidence(rounds, records=None, prompts=6, batches=(1,)):
    plan = grid(prompts, batches=batches, ks=(2, 4), domains=("edit",))
    cells = summarise(rounds, ks=plan.ks, batches=batches, domains=["edit"], objective=Objective())
    measured = [r for runs in rounds.values() for run in runs for r in run.requests]
    return Evidence(cells, measured if records is None else records, plan)


def clean(count=6, accepted=2):
    return rounds_of(*[{0: [10], 2: [5], 4: [4]}] * count, accepted=accepted)


def texts(found):
    return [f"{finding.level}: {finding.text}" for finding in find(found)]


def test_a_clean_run_has_nothing_to_say():
    assert texts(evidence(clean())) == []


def test_acceptance_length_of_exactly_one_is_an_alarm():
    (text,) = texts(evidence(clean(accepted=0)))
    assert text.startswith("alarm: edit: acceptance_length is exactly 1.00 at k = 2, 4")
    # Six requests of five steps of 2 and 4 tokens: 6 x 5 x 6.
    assert "none of 180 draft tokens was accepted" in text


def test_a_handful_of_refused_drafts_is_only_a_warning():
    few = summarise(
        clean(1, accepted=0), ks=(4,), batches=(1,), domains=["edit"], objective=Objective()
    )
    found = Evidence(few, [], grid(6, batches=(1,), ks=(4,), domains=("edit",)))
    assert texts(found)[0].startswith("warning: edit: acceptance_length is exactly 1.00")


def test_a_drafter_that_never_drafts_is_an_alarm_of_its_own():
    from dataclasses import replace

    rounds = {
        key: [
            replace(
                run,
                requests=tuple(
                    replace(r, drafted_per_step=(0,) * 5, accepted_per_step=(0,) * 5)
                    for r in run.requests
                ),
            )
            for run in runs
        ]
        for key, runs in clean().items()
    }
    (text,) = texts(evidence(rounds))
    assert "the drafter proposed nothing at all" in text


def test_degenerate_loops_are_counted():
    records = [record(bigrams=60, unique_bigrams=2)] * 3 + [record(bigrams=60, unique_bigrams=58)]
    (text,) = texts(evidence(clean(), records))
    assert text.startswith("warning: edit: 3 of 4 outputs repeat themselves")


def test_outputs_that_end_early_are_named():
    records = [record(finish="stop", output_tokens=n) for n in (4, 6, 8)] + [record()]
    (text,) = texts(evidence(clean(), records))
    assert "3 of 4 outputs ended before the wanted length, after 6 tokens in the median" in text


def test_an_output_of_one_token_is_named():
    records = [record()] * 3 + [record(output_tokens=1, finish="stop")]
    (text,) = texts(evidence(clean(), records))
    assert "1 output(s) of a single token" in text


def test_few_rounds_and_left_over_prompts_are_named():
    few, out = texts(evidence(clean(3), prompts=7, batches=(1, 2)))
    assert few.startswith("warning: intervals rest on few rounds: edit at batch 1 (3)")
    assert out == "warning: prompts left out, as they fill no batch: 1 of 7 in edit at batch 2."


@pytest.mark.parametrize(("late", "word"), [(13, "30% slower"), (7, "30% faster")])
def test_a_baseline_that_drifts_is_named(late, word):
    rounds = rounds_of(
        *[{0: [10], 2: [5], 4: [4]}] * 5, *[{0: [late], 2: [late / 2], 4: [late / 2]}] * 5
    )
    (text,) = texts(evidence(rounds))
    assert f"batch 1: plain decoding became {word} during the run" in text


def test_alarms_come_first():
    found = find(evidence(clean(3, accepted=0)))
    assert [finding.level for finding in found] == ["alarm", "warning"]
