"""`spectool lint` for pipelines."""

from __future__ import annotations

import json


def test_the_command_prints_it_and_still_fails(spectool, tmp_path):
    (tmp_path / "model").mkdir()
    ran = spectool("lint", tmp_path, "--sarif")
    assert ran.code == 2
    [result] = json.loads(ran.out)["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("config", "error")
