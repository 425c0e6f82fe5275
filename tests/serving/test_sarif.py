"""Findings for code hosts, held against the standard's own schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from toolkit.serving.lint import MODEL_RULES, REPOSITORY_RULES, Finding
from toolkit.serving.lint.sarif import RULES, to_sarif

SCHEMA = json.loads(
    (Path(__file__).parents[1] / "golden/schemas/sarif-2.1.0.json").read_text(encoding="utf-8")
)
FINDINGS = [
    Finding("error", "a model/config.pbtxt", "no dims", 7, 3, rule="tensors"),
    Finding("warning", "b/config.pbtxt", "an odd value", 2, rule="engines"),
    Finding("error", "c", "missing"),
]


def test_every_rule_is_described():
    names = {rule.__name__.removeprefix("check_") for rule in (*MODEL_RULES, *REPOSITORY_RULES)}
    assert set(RULES) == names | {"config"}


@pytest.mark.parametrize("findings", [[], FINDINGS])
def test_it_is_what_the_standard_says(findings):
    document = json.loads(json.dumps(to_sarif(Path("repo"), findings)))
    jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(document)
    assert len(document["runs"][0]["results"]) == len(findings)


def test_places_are_relative_to_where_the_command_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [run] = to_sarif(Path("repo"), FINDINGS)["runs"]
    first = run["results"][0]
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "repo/a%20model/config.pbtxt"},
        "region": {"startLine": 7, "startColumn": 3},
    }
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == first["ruleId"] == "tensors"
    elsewhere = to_sarif(Path("/srv/repo"), FINDINGS)["runs"][0]["results"][2]
    place = elsewhere["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "file:///srv/repo/c"}}
