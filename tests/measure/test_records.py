"""Records survive JSON and lie flat in CSV."""

import json

from tests.measure.made_records import WORKED, run
from toolkit.measure.records import COLUMNS, GroupRun, csv_row


def test_a_run_survives_json():
    original = run(WORKED)
    assert GroupRun.from_json(json.loads(json.dumps(original.to_json()))) == original


def test_a_csv_row_has_every_column_and_lists_as_numbers():
    row = dict(zip(COLUMNS, csv_row(WORKED), strict=True))
    assert row["accepted_per_step"] == "3 0 2"
    assert row["e2e_ns"] == 220_000_000
    assert row["domain"] == "edit"
