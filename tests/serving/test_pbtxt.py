"""Configs as protobuf."""

from __future__ import annotations

import pytest

from toolkit.serving import contract, pbtxt

PARAMETERS = {"gpt_model_path": "/a dir/engine", "role": "target"}


def config():
    return pbtxt.model_config("tensorrt_llm", contract.TENSORRT_LLM, PARAMETERS, max_batch_size=4)


def test_a_printed_config_parses_to_the_same_message():
    assert pbtxt.parse(pbtxt.to_text(config())) == config()


def test_scalars_of_the_contract_have_an_empty_reshape():
    by_name = {tensor.name: tensor for tensor in config().input}
    assert by_name["temperature"].HasField("reshape")
    assert list(by_name["temperature"].reshape.shape) == []
    assert not by_name["input_ids"].HasField("reshape")
    assert by_name["input_ids"].allow_ragged_batch
    assert "reshape {\n  }" in pbtxt.to_text(config())


def test_paths_with_spaces_and_quotes_survive():
    path = '/a dir/"quoted" \\ 한글'
    made = pbtxt.model_config(
        "m", contract.TENSORRT_LLM, {"gpt_model_path": path, "role": "draft"}, max_batch_size=1
    )
    assert pbtxt.parameters_of(pbtxt.parse(pbtxt.to_text(made)))["gpt_model_path"] == path


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"role": "target"}, "missing ['gpt_model_path']"),
        ({**PARAMETERS, "gpt_modl_path": "x"}, "unknown ['gpt_modl_path']"),
    ],
)
def test_a_parameter_that_no_code_reads_is_never_written(parameters, message):
    with pytest.raises(ValueError, match="m: ") as error:
        pbtxt.model_config("m", contract.TENSORRT_LLM, parameters, max_batch_size=1)
    assert message in str(error.value)


def test_repeated_map_keys_are_seen():
    text = (
        'parameters { key: "a" value { string_value: "1" } }\n'
        'parameters [ { key: "a" value { string_value: "2" } }, { key: "b" } ]\n'
        'ensemble_scheduling { step { input_map { key: "x" value: "1" } '
        'input_map { key: "x" value: "2" } } }'
    )
    assert dict(pbtxt.parse(text).parameters)["a"].string_value == "2"
    keys = pbtxt.map_keys(text)
    assert keys["parameters"] == ["a", "a", "b"]
    assert keys["step 1 input_map"] == ["x", "x"]
