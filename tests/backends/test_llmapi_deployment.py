"""A recipe built for the PyTorch backend, run and measured with TensorRT-LLM's API."""

from __future__ import annotations

import json
import sys

import pytest

from tests import tiny_heads as heads
from tests.backends.fake_deployment import FakeDeployment
from tests.backends.fake_tensorrt_llm import make_modules
from tests.backends.fake_trtllm_serve import FakeTrtllmServe
from tests.commands.conftest import spectool
from tests.tiny import write_checkpoint
from toolkit.backends.llmapi_runtime import open_endpoint
from toolkit.backends.runtime import open_runtime
from toolkit.engine.built import BuiltModels
from toolkit.measure.run import Conditions, EncodedPrompt, measure_group
from toolkit.recipe.schema import Sampling

__all__ = ["spectool"]

RECIPE = {
    "name": "lab",
    "backend": "pytorch",
    "tensorrt_llm": "1.2.1",
    "target": {"checkpoint": "./target", "dtype": "float16"},
    "speculation": {"drafter": "eagle3", "max_draft_len": 4, "heads": {"checkpoint": "./heads"}},
    "engine": {"max_batch_size": 4, "max_input_len": 100, "max_seq_len": 200},
}
CONDITIONS = Conditions(max_tokens=9, sampling=Sampling(), stop_tokens=frozenset())


@pytest.fixture
def recipe(tmp_path):
    write_checkpoint(tmp_path / "target", dtype="float16")
    heads.write_heads(tmp_path / "heads", heads.eagle3(), heads.eagle3_config())
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(RECIPE), encoding="utf-8")
    return path


@pytest.fixture
def llm(monkeypatch):
    """TensorRT-LLM, installed; the class that it loads models with."""
    modules = make_modules(FakeDeployment())
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules["tensorrt_llm"].LLM


def built(tmp_path) -> BuiltModels:
    return BuiltModels.from_json((tmp_path / "store" / "last.json").read_text(encoding="utf-8"))


def measured(runtime):
    prompt = EncodedPrompt("p0", "code", (3, 4, 5))
    run = measure_group(runtime.loop(), [prompt], k=4, round="r0", conditions=CONDITIONS)
    return run.requests[0]


def test_what_was_built_is_what_is_loaded(spectool, recipe, llm, tmp_path):
    assert spectool("build", recipe).code == 0
    runtime = open_runtime(built(tmp_path))
    record = measured(runtime)
    assert (record.accepted_per_step, record.drafted_per_step) == ((3, 0, 2), (4, 4, 4))
    (loaded,) = llm.loaded
    assert loaded.model == str(tmp_path / "target")
    speculation = loaded.args.speculative_config
    assert speculation.max_draft_len == 4
    head = tmp_path / "store" / "engines"
    assert speculation.speculative_model_dir.startswith(str(head))
    assert speculation.speculative_model_dir.endswith("/draft")
    runtime.close()
    assert loaded.closed


def test_the_same_recipe_is_measured_where_it_is_served(spectool, recipe, llm, tmp_path):
    assert spectool("build", recipe).code == 0
    local = open_runtime(built(tmp_path))
    with FakeTrtllmServe(FakeDeployment()) as server:
        served = open_endpoint(local.recipe, server.url, local.tokenizer)
        record = measured(served)
    assert record.accepted_per_step == measured(local).accepted_per_step == (3, 0, 2)


def test_generate_streams_from_it(spectool, recipe, llm):
    assert spectool("build", recipe).code == 0
    ran = spectool("generate", recipe, "--prompt", "a", "--max-tokens", "9", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["stats"]["accepted_per_step"] == [3, 0, 2]


def test_generate_asks_a_server_without_tensorrt_llm(spectool, recipe, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    words = ("generate", recipe, "--prompt", "a", "--max-tokens", "9", "--json", "--url")
    with FakeTrtllmServe(FakeDeployment()) as server:
        ran = spectool(*words, server.url)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["stats"]["accepted_per_step"] == [3, 0, 2]
    ran = spectool(*words, server.url)  # it is gone
    assert ran.code == 1
    assert "connection refused; is trtllm-serve running there?" in ran.err


def test_other_backends_are_not_asked_over_the_network(spectool, recipe):
    ran = spectool(
        "generate", recipe, "--prompt", "a", "--url", "http://127.0.0.1:1",
        "--set", "backend=cpu", "--set", "speculation={drafter: none}",
    )  # fmt: skip
    assert ran.code == 2
    assert "backend 'cpu' is not asked over the network here" in ran.err


def test_without_tensorrt_llm_it_is_built_but_not_run(spectool, recipe, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    assert spectool("build", recipe).code == 0
    ran = spectool("generate", recipe, "--prompt", "a")
    assert ran.code == 3
    assert "spectool[tensorrt]" in ran.err


def test_a_head_as_a_draft_model_is_not_built(spectool, recipe):
    wrong = {"drafter": "draft_target", "max_draft_len": 4, "draft": {"checkpoint": "./heads"}}
    recipe.write_text(json.dumps(RECIPE | {"speculation": wrong}), encoding="utf-8")
    for command in ("check", "build"):
        ran = spectool(command, recipe)
        assert ran.code == 2
        assert "is an EAGLE-3 head (draft_vocab_size 128" in ran.err


def test_a_broken_head_stops_check_and_build(spectool, recipe, tmp_path):
    tensors = heads.eagle3()
    del tensors["lm_head.weight"]
    heads.write_heads(tmp_path / "heads", tensors, heads.eagle3_config())
    for command in ("check", "build"):
        ran = spectool(command, recipe)
        assert ran.code == 2
        assert "lm_head.weight: missing, but draft_vocab_size 128 differs" in ran.err
        assert "Traceback" not in ran.err
