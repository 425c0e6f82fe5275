"""Plans become one graph: what they share is one step, and a step is a document."""

import json

import pytest

from tests.recipes_for_tests import write_recipe
from tests.tiny import write_checkpoint
from toolkit.execute import build_all, make_artefact
from toolkit.plan import make_plan
from toolkit.recipe.load import load_recipe
from toolkit.steps import artefact_of, build_graph, common
from toolkit.store import Store
from toolkit.tuning_steps import with_tuning

SLICE = "checkpoint: ./model, dtype: float32, layers: [0]"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def plans(path, store, *several):
    return [make_plan(load_recipe(str(path), overrides), store) for overrides in several]


def test_recipes_share_the_steps_that_they_have_in_common(tmp_path, store):
    path = write_recipe(tmp_path)
    found = plans(path, store, ["name=one"], ["name=two", "engine.max_batch_size=1"])
    graph, artefacts = build_graph(found, store)
    # One checkpoint and one tokenizer; two engines, since their sizes differ.
    assert [artefacts[step.id].kind for step in graph] == [
        "checkpoints", "tokenizers", "engines", "engines",
    ]  # fmt: skip
    assert [step.title for step in graph] == [
        "one: convert target", "one: tokenizer target", "one: engine target", "two: engine target",
    ]  # fmt: skip
    checkpoint = next(iter(graph)).id
    assert [step.inputs for step in graph] == [(), (), (checkpoint,), (checkpoint,)]
    assert [a.digest for a in common(found)] == [a.digest for a in artefacts.values()]


def test_a_step_needs_memory_for_its_weights_and_sees_its_model(tmp_path, store):
    graph, _ = build_graph(plans(write_recipe(tmp_path), store, []), store)
    convert, _, engine = graph
    size = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert convert.needs.memory == (512 << 20) + size
    assert convert.needs.paths == (str(tmp_path / "model"),)
    assert engine.needs.labels.keys() == {"engine_version", "openvino"}
    assert engine.needs.gpus == 0


def test_an_engine_for_gpus_needs_as_many_as_it_has_ranks(tmp_path, store):
    write_checkpoint(tmp_path / "model")
    text = "name: x\nbackend: tensorrt\ntensorrt_llm: 1.2.1\ntensorrt: {gpu: H100}\n"
    text += "target: {checkpoint: ./model, parallel: {tp: 4}}\n"
    path = tmp_path / "gpu.yaml"
    path.write_text(text + "speculation: {drafter: ngram}\n")
    graph, _ = build_graph(plans(path, store, []), store)
    engine = list(graph)[-1]
    assert engine.needs.gpus == 4
    assert engine.needs.labels == {"tensorrt_llm": "1.2.1", "gpu": "sm_90"}
    # Its digest waits for the machine that builds, and its place in the graph does not.
    assert engine.outputs == ()
    assert [graph.steps[name].title for name in engine.inputs] == ["convert target"]


def test_a_step_is_json_and_says_all_that_making_the_artefact_needs(tmp_path, store):
    (plan,) = plans(write_recipe(tmp_path, SLICE), store, [])
    graph, artefacts = build_graph([plan], store)
    for name in graph.order:
        step = graph.steps[name]
        work = json.loads(json.dumps(step.work))
        artefact, recipe, _ = artefact_of(work)
        assert recipe == plan.recipe
        assert artefact.spec == artefacts[name].spec
        assert make_artefact(work)["cached"] is False
        assert store.has(artefact.kind, artefact.digest)


def test_a_hub_model_is_made_from_the_commit_of_its_digest(tmp_path, store, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = "0123456789abcdef0123456789abcdef01234567"
    overrides = ["target.checkpoint=some-org/some-model", f"target.revision={commit!r}"]
    (plan,) = plans(write_recipe(tmp_path), store, overrides)
    graph, _ = build_graph([plan], store)
    assert next(iter(graph)).work["model"]["revision"] == commit


def test_several_recipes_are_built_together_and_what_is_common_once(tmp_path, store):
    path, made = write_recipe(tmp_path), []
    found = plans(path, store, ["name=one"], ["name=two", "engine.max_batch_size=1"])
    one, two = build_all(found, store, report=made.append)
    assert [m.artefact.kind for m in made] == ["checkpoints", "tokenizers", "engines", "engines"]
    assert one.tokenizers == two.tokenizers
    assert one.engines != two.engines
    again = []
    build_all(plans(path, store, ["name=one"], ["name=two"]), store, report=again.append)
    assert [m.entry.cached for m in again] == [True] * 3


def test_tuning_waits_for_engines_then_predicts_then_measures(tmp_path, store):
    tune = ["tune.batch=[1, 2]", "tune.prompts={code: code, edit: edit}"]
    found = plans(write_recipe(tmp_path), store, tune)
    graph = with_tuning(build_graph(found, store)[0], found)
    kinds = [step.kind for step in graph]
    assert kinds == ["artefact"] * 3 + ["trace"] * 2 + ["step_times"] + ["point"] * 4
    steps = {step.title: step for step in graph}
    times = steps["tiny: ngram: step times"]
    assert {graph.steps[name].kind for name in times.inputs} == {"artefact", "trace"}
    point = steps["tiny: ngram: measure batch 2, edit"]
    assert times.id in point.inputs
    assert point.needs.alone


def test_a_deployment_has_nothing_to_tune_for_it_always_drafts_alike(store):
    found = [make_plan(load_recipe("llama3_1/8b_eagle3"), store)]
    graph = with_tuning(build_graph(found, store)[0], found)
    assert {step.kind for step in graph} == {"artefact"}
    engine = next(step for step in graph if step.title == "engine target")
    assert [graph.steps[name].title for name in engine.inputs] == ["convert draft"]


def test_what_has_no_trace_is_measured_at_every_point(store):
    sampled = ["tune.sampling.temperature=0.7"]
    found = [make_plan(load_recipe("llama3_1/70b_draft_target", sampled), store)]
    graph = with_tuning(build_graph(found, store)[0], found)
    assert {step.kind for step in graph} == {"artefact", "point"}
    points = [step for step in graph if step.kind == "point"]
    assert all(step.needs.labels["tensorrt_llm"] for step in points)
    assert all(step.needs.gpus == 4 for step in points)
