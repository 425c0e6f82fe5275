"""results.json is what its published schema says."""

import json

import pytest
from jsonschema import Draft202012Validator

from tests.tuning.test_results import LOSS, results
from toolkit.cli import main
from toolkit.tuning.result_schema import result_schema
from toolkit.tuning.results import document, to_json


@pytest.fixture(scope="module")
def validator():
    schema = result_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize(
    "found", [results(), results(LOSS), results(count=1), results(domains=("edit", "chat"))]
)
def test_every_document_is_valid(validator, found):
    validator.validate(json.loads(to_json(found)))
    validator.validate(json.loads(json.dumps(document(found, whole=False))))


def test_a_document_with_another_shape_is_not(validator):
    wrong = json.loads(to_json(results()))
    del wrong["choices"]
    assert not validator.is_valid(wrong)
    wrong = json.loads(to_json(results()))
    wrong["records"][0]["e2e_ns"] = "soon"
    assert not validator.is_valid(wrong)


def test_the_command_prints_it(capsys):
    with pytest.raises(SystemExit):
        main(["schema", "results"])
    assert json.loads(capsys.readouterr().out)["title"] == "spectool.tune/1"
    with pytest.raises(SystemExit) as ended:
        main(["schema", "result"])
    assert ended.value.code == 2
    assert "did you mean" in capsys.readouterr().err
