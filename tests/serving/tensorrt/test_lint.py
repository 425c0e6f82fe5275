"""Single ways to break a repository for engines, each of which lint must find."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.serving.mutations import Mutation, edit, parameter, replace
from tests.serving.tensorrt.conftest import recipe_for
from tests.serving.trt_engines import trt_built
from toolkit.engine.built import BuiltModels
from toolkit.serving.lint import Finding, lint
from toolkit.serving.repository import write_repository

TARGET, DRAFT, BLS = "tensorrt_llm", "tensorrt_llm_draft", "tensorrt_llm_bls"


@pytest.fixture
def repository(engines, engine_repository, tmp_path) -> Path:
    """A copy to be broken, with engines of its own."""
    copied = {}
    for role, path in engines.engines.items():
        copied[role] = tmp_path / path.name
        shutil.copytree(path, copied[role])
    built = BuiltModels(engines.recipe, copied, engines.tokenizers)
    return write_repository(built, tmp_path / "repo")


def decoupled(config) -> None:
    config.model_transaction_policy.decoupled = True


def drop_seed(config) -> None:
    config.input.remove(next(t for t in config.input if t.name == "seed"))


def rename_seed(config) -> None:
    next(t for t in config.input if t.name == "seed").name = "random_seed"


MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "misspelt parameter": (
        parameter(TARGET, "enable_kv_cache_reus", "true"),
        "did you mean 'enable_kv_cache_reuse'",
    ),
    "no engine": (parameter(TARGET, "gpt_model_path", None), "'gpt_model_path' is missing"),
    "engine left unfilled": (
        parameter(DRAFT, "gpt_model_path", "${engine_dir}"),
        "'gpt_model_path' is missing or empty",
    ),
    "engine by a relative path": (
        parameter(TARGET, "gpt_model_path", "1/engine"),
        "write an absolute path",
    ),
    "engine that is not there": (parameter(DRAFT, "gpt_model_path", "/nowhere"), "no config.json"),
    "no batching": (parameter(TARGET, "gpt_model_type", None), "'gpt_model_type' is missing"),
    "batching of another word": (
        parameter(TARGET, "gpt_model_type", "inflight_fused"),
        "did you mean 'inflight_fused_batching'",
    ),
    "decoding mode of another word": (
        parameter(TARGET, "decoding_mode", "medusaa"),
        "did you mean 'medusa'",
    ),
    "decoding mode without its engine": (
        parameter(TARGET, "decoding_mode", "medusa"),
        "the engine was built for draft_tokens_external",
    ),
    "lookahead without its sizes": (
        parameter(TARGET, "decoding_mode", "lookahead"),
        "lookahead needs parameter 'lookahead_window_size'",
    ),
    "no reuse": (parameter(TARGET, "enable_kv_cache_reuse", None), "must be true"),
    "reuse off": (parameter(TARGET, "enable_kv_cache_reuse", "false"), "must be true"),
    "reuse of another word": (parameter(DRAFT, "enable_kv_cache_reuse", "yes"), "true or false"),
    "fraction above one": (
        parameter(TARGET, "kv_cache_free_gpu_mem_fraction", "1.5"),
        "at most 1",
    ),
    "fraction in words": (
        parameter(TARGET, "kv_cache_free_gpu_mem_fraction", "half"),
        "expected a number above 0",
    ),
    "tokens in words": (
        parameter(TARGET, "max_tokens_in_paged_kv_cache", "many"),
        "expected a whole number above 0",
    ),
    "too many GPUs": (parameter(TARGET, "gpu_device_ids", "0,1"), "an engine of 1 rank(s)"),
    "GPUs in words": (parameter(TARGET, "gpu_device_ids", "all"), "expected numbers like 0,1"),
    "participant of Triton's own": (
        parameter(TARGET, "participant_ids", "0"),
        "rank 0 is Triton itself",
    ),
    "too many participants": (
        parameter(DRAFT, "participant_ids", "1,2"),
        "2 number(s) for an engine of 1",
    ),
    "fast logits without participants": (
        parameter(DRAFT, "speculative_decoding_fast_logits", "true"),
        "switched off without participant_ids",
    ),
    "no bound on the target's KV": (
        parameter(TARGET, "max_tokens_in_paged_kv_cache", None),
        "the order is a race",
    ),
    "draft decoupled": (edit(DRAFT, decoupled), "one response a call"),
    "target decoupled": (edit(TARGET, decoupled), "one response a call"),
    "loop that knows no release": (
        parameter(BLS, "tensorrt_llm_release", None),
        "'tensorrt_llm_release' is missing",
    ),
    "input gone": (edit(TARGET, drop_seed), "'seed'"),
    "input of another release": (edit(DRAFT, rename_seed), "'random_seed': this model has none"),
    "draft logits of another type": (
        replace(TARGET, "TYPE_UINT64", "TYPE_INT64"),
        "expected UINT64",
    ),
    "backend misspelt": (replace(TARGET, '"tensorrtllm"', '"tensorrt_llm"'), "did you mean"),
    "model of the loop misspelt": (
        parameter(BLS, "tensorrt_llm_draft_model_name", "tensorrt_llm_darft"),
        "did you mean 'tensorrt_llm_draft'",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_single_mutation_is_found(repository, name):
    mutate, message = MUTATIONS[name]
    assert lint(repository) == []
    mutate(repository)
    found = [finding for finding in lint(repository) if "since spectool" not in finding.message]
    assert any(message in finding.message for finding in found), found


def test_a_change_of_the_engine_is_found(repository, tmp_path):
    config = tmp_path / "target-engine" / "config.json"
    document = json.loads(config.read_text())
    document["version"] = "0.20.0"
    config.write_text(json.dumps(document))
    assert any("built by 0.20.0, the repository is for 1.2" in f.message for f in lint(repository))
    document["build_config"]["plugin_config"]["use_paged_context_fmha"] = False
    config.write_text(json.dumps(document))
    assert any("without paged context FMHA" in finding.message for finding in lint(repository))
    document["build_config"]["max_batch_size"] = 2
    config.write_text(json.dumps(document))
    assert any("above the engine's, 2" in finding.message for finding in lint(repository))


def test_ranks_that_two_engines_want_are_found(tmp_path):
    recipe = recipe_for("draft_target", processes="participants")
    repository = write_repository(trt_built(tmp_path / "built", recipe), tmp_path / "repo")
    parameter(DRAFT, "participant_ids", "1")(repository)
    assert any("rank 1 is tensorrt_llm's already" in f.message for f in lint(repository))


@pytest.mark.parametrize(
    ("drafter", "name", "value", "message"),
    [
        ("medusa", "decoding_mode", None, "decoding_mode': missing, but the engine was built for"),
        ("medusa", "decoding_mode", "eagle", "eagle, but the engine was built for medusa"),
        ("medusa", "medusa_choices", "{0}" * 64, "64 nodes, the engine drafts at most 63"),
        ("none", "decoding_mode", "medusa", "the engine was built without speculation"),
    ],
)
def test_a_decoding_mode_that_is_not_the_engines_is_found(tmp_path, drafter, name, value, message):
    built = trt_built(tmp_path / "built", recipe_for(drafter))
    repository = write_repository(built, tmp_path / "repo")
    parameter(TARGET, name, value)(repository)
    assert any(message in finding.message for finding in lint(repository))


def foreign(repository: Path) -> list[Finding]:
    """As if somebody else had written it."""
    (repository / "manifest.json").unlink()
    return lint(repository)


def test_a_repository_of_somebody_elses_is_held_to_the_backends_parameters(repository):
    assert foreign(repository) == []
    parameter(TARGET, "kv_cache_free_gpu_mem_fractoin", "0.5")(repository)
    parameter(DRAFT, "something_else", "1")(repository)
    found = {finding.message: finding.level for finding in lint(repository)}
    misspelt = next(m for m in found if "did you mean 'kv_cache_free_gpu_mem_fraction'" in m)
    assert found[misspelt] == "error"
    assert found[next(m for m in found if "something_else" in m)] == "warning"


def test_the_half_and_half_of_the_guides_is_a_half_and_a_quarter(repository):
    for model in (TARGET, DRAFT):
        parameter(model, "kv_cache_free_gpu_mem_fraction", "0.5")(repository)
        parameter(model, "max_tokens_in_paged_kv_cache", None)(repository)
    [finding] = [f for f in lint(repository) if "race" in f.message]
    assert "tensorrt_llm 0.50, then tensorrt_llm_draft 0.25 of the memory left" in finding.message
    assert finding.level == "warning"


def test_engines_on_gpus_of_their_own_race_for_nothing(repository):
    for model, gpu in ((TARGET, "0"), (DRAFT, "1")):
        parameter(model, "gpu_device_ids", gpu)(repository)
        parameter(model, "max_tokens_in_paged_kv_cache", None)(repository)
    assert not any("race" in finding.message for finding in lint(repository))


def test_another_engine_than_the_repository_was_made_for_is_found(engines, tmp_path):
    directory = tmp_path / "target-engine"
    shutil.copytree(engines.engines["target"], directory)
    manifest = directory / "manifest.json"
    manifest.write_text(json.dumps({"digest": "a" * 32, "files": {}}))
    built = BuiltModels(
        engines.recipe, {**engines.engines, "target": directory}, engines.tokenizers
    )
    repository = write_repository(built, tmp_path / "repo")
    assert lint(repository) == []
    manifest.write_text(json.dumps({"digest": "b" * 32, "files": {}}))
    [finding] = lint(repository)
    assert "a" * 32 in finding.message
    assert finding.file == "tensorrt_llm/config.pbtxt"


def test_parameters_that_a_template_left_unfilled_are_one_warning(repository):
    parameter(TARGET, "sink_token_length", "${sink_token_length}")(repository)
    parameter(TARGET, "num_nodes", "${num_nodes}")(repository)
    [finding] = foreign(repository)
    assert finding.message == "left over ${num_nodes}, ${sink_token_length}: unset"
    assert finding.level == "warning"


def test_an_output_that_is_declared_twice_word_for_word_is_harmless(repository):
    def repeat(config) -> None:
        config.output.append(config.output[0])

    edit("ensemble", repeat)(repository)
    [finding] = [f for f in lint(repository) if "declared 2 times" in f.message]
    assert finding.level == "warning"
