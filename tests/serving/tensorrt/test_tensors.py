"""Our tables of tensors and parameters against the templates of each release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolkit.engine.trtllm.triton_parameters import PARAMETERS
from toolkit.serving.contract import Tensor
from toolkit.serving.tensorrt.tensors import (
    engine_contract,
    ensemble_contract,
    ensemble_steps,
    names,
)

UPSTREAM = json.loads(
    (Path(__file__).parents[2] / "golden" / "triton_tensorrt_llm.json").read_text()
)
RELEASES = {text: tuple(map(int, text.split("."))) for text in UPSTREAM}


def said(tensor: Tensor) -> str:
    flags = [("opt", tensor.optional), ("reshape", tensor.reshape), ("ragged", tensor.ragged)]
    dims = ",".join(map(str, tensor.dims))
    return " ".join([f"{tensor.dtype}[{dims}]", *(name for name, is_set in flags if is_set)])


@pytest.mark.parametrize("text", UPSTREAM)
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_an_engines_model_declares_what_its_release_declares(text, side):
    contract = engine_contract(RELEASES[text])
    declared = {tensor.name: said(tensor) for tensor in getattr(contract, side)}
    assert declared == UPSTREAM[text][side]


@pytest.mark.parametrize("text", UPSTREAM)
def test_every_parameter_of_a_release_is_known_for_it(text):
    known = {name for name, p in PARAMETERS.items() if p.since <= RELEASES[text]}
    assert set(UPSTREAM[text]["parameters"]) <= known


def test_a_parameter_is_not_known_before_its_release():
    for text, upstream in UPSTREAM.items():
        later = {name for name, p in PARAMETERS.items() if p.since > RELEASES[text]}
        assert not later & set(upstream["parameters"])


@pytest.mark.parametrize("text", UPSTREAM)
@pytest.mark.parametrize("streams", [False, True])
def test_the_ensemble_uses_the_words_of_its_release(text, streams):
    declared = {t.name: said(t) for t in ensemble_contract(RELEASES[text], streams=streams).inputs}
    upstream = UPSTREAM[text]["ensemble_inputs"]
    assert declared == {name: upstream[name] for name in declared}
    assert ("stream" in declared) == streams


@pytest.mark.parametrize("text", UPSTREAM)
@pytest.mark.parametrize("streams", [False, True])
def test_the_ensembles_wires_end_at_tensors_that_are_there(text, streams):
    release = RELEASES[text]
    contract, engine = ensemble_contract(release, streams=streams), engine_contract(release)
    _, (_, inputs, outputs), _ = ensemble_steps(release, streams=streams)
    assert all(engine.input(name) for name in inputs)
    assert all(engine.output(name) for name in outputs)
    steps = ensemble_steps(release, streams=streams)
    used = {tensor for _, wires, _ in steps for tensor in wires.values()}
    assert {tensor.name for tensor in contract.inputs} <= used


@pytest.mark.parametrize(
    ("release", "seed", "min_tokens", "perf_metrics"),
    [
        ((0, 16), "random_seed", "min_length", False),
        ((0, 18), "random_seed", "min_length", False),
        ((0, 19), "random_seed", "min_length", True),
        ((0, 20), "seed", "min_tokens", True),
        ((1, 2), "seed", "min_tokens", True),
    ],
)
def test_what_was_renamed_and_when(release, seed, min_tokens, perf_metrics):
    found = names(release)
    assert (found.seed, found.min_tokens, found.perf_metrics) == (seed, min_tokens, perf_metrics)


def test_later_releases_count_tokens_too():
    new, old = engine_contract((1, 2)), engine_contract((0, 20))
    assert {t.name for t in new.inputs} - {t.name for t in old.inputs} == {
        "return_num_input_tokens",
        "return_num_output_tokens",
    }
    assert {t.name for t in new.outputs} - {t.name for t in old.outputs} == {
        "num_input_tokens",
        "num_output_tokens",
    }


def test_logits_have_the_engines_type():
    contract = engine_contract((1, 2), logits="FP16")
    assert contract.input("draft_logits").dtype == "FP16"
    assert contract.output("generation_logits").dtype == "FP16"
    assert contract.input("temperature").dtype == "FP32"
