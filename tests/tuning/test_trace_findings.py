"""Each way in which a prediction may mislead is said."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuning.test_grid import grid
from tests.tuning.test_predict import MS, predicted, times
from toolkit.measure.trace_log import Log
from toolkit.speculation.draft_length import Adaptive
from toolkit.tuning.adaptive import Scored
from toolkit.tuning.choose import choose
from toolkit.tuning.trace_findings import trace_findings
from toolkit.tuning.trace_mode import Traced, TraceReport
from toolkit.tuning.trace_table import TRACE_COLUMNS, trace_rows

CELLS = list(predicted(grid(4, batches=(1,), ks=(2, 4), domains=("edit",)), {}).values())
SLOW = [replace(cell, tpot_p50_ns=cell.tpot_p50_ns * 1.2) for cell in CELLS]
LOST = [
    cell
    if cell.plain
    else replace(cell, speedup=replace(cell.speedup, value=0.8, low=0.7, high=0.9))
    for cell in CELLS
]


def report(agreement=None, log=None, table=None):
    traced = Traced({}, {}, 0, True, agreement or {}, {})
    adaptive = {1: Scored(Adaptive(1, 4), (CELLS[-1],))}
    return TraceReport(CELLS, choose(CELLS), adaptive, None, CELLS, traced, table or times(1), log)


def texts(found, measured=CELLS):
    return [finding.text for finding in trace_findings(found, measured, choose(measured))]


def test_a_prediction_that_comes_true_has_nothing_to_say():
    assert texts(report({"log": 0.99})) == []


def test_a_log_of_another_model_is_named():
    [text] = texts(report({"log": 0.7}))
    assert text.startswith("log: 30% of the log's tokens are none that the target would give")


def test_repeated_lines_are_counted():
    [text] = texts(report(log=Log(Path("x.jsonl"), (), {}, {}, 3)))
    assert text == "x.jsonl: 3 line(s) repeat an earlier prompt and were left out."


def test_another_pace_of_the_machine_is_no_wrong_prediction():
    [text] = texts(report(), SLOW)
    assert text.startswith("plain decoding was more than 10% off the predicted TPOT: edit at batch")
    assert "edit at batch 1, k = 0 (+20%); the machine ran at another pace" in text


def test_ratios_that_were_not_as_predicted_are_listed():
    slower = [SLOW[0], *(replace(cell, tpot_p50_ns=cell.tpot_p50_ns * 1.2) for cell in SLOW[1:])]
    [_, text] = texts(report(), slower)
    assert "edit at batch 1, k = 2 (+20%), edit at batch 1, k = 4 (+20%); either" in text
    [text] = texts(report(), [CELLS[0], *SLOW[1:]])
    assert "edit at batch 1, k = 2 (+20%), edit at batch 1, k = 4 (+20%); either" in text


def test_unsteady_steps_are_named():
    table = times(1)
    shaky = replace(table, points=(replace(table.points[0], spread=0.25), *table.points[1:]))
    [text] = texts(report(table=shaky))
    assert text.startswith(
        "step times were unsteady (the two quickest visits to a point are 25% apart)"
    )


def test_verdicts_that_differ_are_named():
    [text] = texts(report(), LOST)
    assert text.startswith("batch 1: predicted on, measured off")


def test_the_table_has_every_k_the_adaptive_policy_and_the_comparison():
    rows = trace_rows(report(), SLOW[:2], 1)
    assert [len(row) for row in rows] == [len(TRACE_COLUMNS)] * 4
    assert [row[1] for row in rows] == ["plain", "2", "4", "to 4"]
    assert rows[0] == ("edit", "plain", "", "10.00", "", "", "10.00", "12.00", "+20.0%")
    assert rows[2][6:] == ("", "", "")
    assert SLOW[0].tpot_p50_ns == pytest.approx(12 * MS)
