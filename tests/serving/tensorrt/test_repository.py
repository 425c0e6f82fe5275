"""What a repository for engines holds, by drafter and placement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.trtllm.recipes import made
from tests.serving.tensorrt.conftest import parameters, recipe_for
from tests.serving.trt_engines import trt_built, write_engine
from toolkit.bundled import bundled
from toolkit.engine.built import BuiltModels
from toolkit.errors import InputError, RecipeError
from toolkit.recipe.load import load_recipe
from toolkit.recipe.schema import Recipe
from toolkit.serving.lint import lint
from toolkit.serving.pbtxt import parse
from toolkit.serving.repository import repository_manifest, write_repository

ENSEMBLE = ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm"]
BLS = ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"]
WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"


def models(repository):
    return sorted(path.name for path in repository.iterdir() if path.is_dir())


def config(repository, model):
    return parse((repository / model / "config.pbtxt").read_text())


def written(tmp_path, drafter, **more):
    return write_repository(
        trt_built(tmp_path / "built", recipe_for(drafter, **more)), tmp_path / "r"
    )


@pytest.mark.parametrize(
    ("drafter", "entry", "wanted"),
    [
        ("draft_target", "tensorrt_llm_bls", [*BLS, "tensorrt_llm_draft"]),
        ("ngram", "tensorrt_llm_bls", BLS),
        *((d, "ensemble", ENSEMBLE) for d in ("none", "medusa", "eagle", "redrafter", "lookahead")),
    ],
)
def test_models_follow_from_the_drafter(tmp_path, drafter, entry, wanted):
    repository = written(tmp_path, drafter)
    assert models(repository) == wanted
    manifest = repository_manifest(repository)
    assert (manifest["entry"], manifest["models"]["tensorrt_llm"]["role"]) == (entry, "target")
    assert lint(repository) == []


def test_an_engine_that_takes_grammars_is_told_its_tokenizer(tmp_path):
    repository = written(tmp_path, "medusa", guided_decoding="xgrammar")
    assert lint(repository) == []
    found = parameters(repository, "tensorrt_llm")
    assert found["guided_decoding_backend"] == "xgrammar"
    assert (Path(found["tokenizer_dir"]) / "tokenizer.json").is_file()
    plain = parameters(written(tmp_path / "plain", "medusa"), "tensorrt_llm")
    assert not {"guided_decoding_backend", "tokenizer_dir"} & set(plain)


def test_the_parameters_of_a_target_and_its_draft(engine_repository, engines):
    # 200 tokens and 10 drafted ones are 7 blocks of 32 tokens; the draft's 200 are 7 too; batch 4.
    both = {
        "gpt_model_type": "inflight_fused_batching",
        "max_beam_width": "1",
        "batch_scheduler_policy": "guaranteed_no_evict",
        "exclude_input_in_output": "true",
        "cancellation_check_period_ms": "100",
        "stats_check_period_ms": "100",
        "executor_worker_path": WORKER,
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "enable_kv_cache_reuse": "true",
        "enable_chunked_context": "false",
        "gpu_device_ids": "0",
        "max_tokens_in_paged_kv_cache": "896",
    }
    # 8 of 10 layers are the target's: 0.9 * 0.8; then the draft takes 0.9 of what that leaves free.
    assert parameters(engine_repository, "tensorrt_llm") == both | {
        "gpt_model_path": str(engines.engines["target"]),
        "kv_cache_free_gpu_mem_fraction": "0.72",
    }
    assert parameters(engine_repository, "tensorrt_llm_draft") == both | {
        "gpt_model_path": str(engines.engines["draft"]),
        "kv_cache_free_gpu_mem_fraction": "0.9",
    }


def test_an_engines_model_is_the_backends_alone(engine_repository):
    for name in ("tensorrt_llm", "tensorrt_llm_draft"):
        found = config(engine_repository, name)
        assert (found.backend, found.max_batch_size) == ("tensorrtllm", 4)
        assert list((engine_repository / name / "1").iterdir()) == []
        assert not found.model_transaction_policy.decoupled
        assert list(found.dynamic_batching.preferred_batch_size) == [4]


def test_our_loop_knows_the_release_and_how_drafts_are_accepted(engine_repository):
    found = parameters(engine_repository, "tensorrt_llm_bls")
    assert found["tensorrt_llm_release"] == "1.2"
    assert found["use_draft_logits"] == found["speculative_decoding_fast_logits"] == "false"
    assert found["tensorrt_llm_draft_model_name"] == "tensorrt_llm_draft"
    assert found["max_seq_len"] == "200"


@pytest.mark.parametrize(
    ("drafter", "wanted"),
    [
        ("redrafter", {"decoding_mode": "redrafter"}),
        (
            "lookahead",
            {
                "decoding_mode": "lookahead",
                "lookahead_window_size": "7",
                "lookahead_ngram_size": "7",
                "lookahead_verification_set_size": "7",
            },
        ),
    ],
)
def test_decoding_parameters_come_from_the_drafter(tmp_path, drafter, wanted):
    found = parameters(written(tmp_path, drafter), "tensorrt_llm")
    assert wanted.items() <= found.items()


@pytest.mark.parametrize("drafter", ["medusa", "eagle"])
def test_trees_are_written_in_braces(tmp_path, drafter):
    found = parameters(written(tmp_path, drafter), "tensorrt_llm")
    assert found["decoding_mode"] == drafter
    choices = found[f"{drafter}_choices"]
    assert choices.startswith("{0}, {0, 0}, {1}, {0, 1}, ")
    assert choices.count("{") == 63


def test_an_engine_that_clients_ask_may_stream(tmp_path):
    repository = written(tmp_path, "medusa")
    assert config(repository, "tensorrt_llm").model_transaction_policy.decoupled
    assert "stream" in {tensor.name for tensor in config(repository, "ensemble").input}


def test_a_recipe_may_say_that_it_does_not(tmp_path):
    repository = written(tmp_path, "medusa", decoupled=False)
    assert not config(repository, "tensorrt_llm").model_transaction_policy.decoupled
    assert "stream" not in {tensor.name for tensor in config(repository, "ensemble").input}
    assert lint(repository) == []


def test_what_the_recipe_says_stands(tmp_path):
    said = {
        "target": {"max_tokens_in_paged_kv_cache": 2560, "max_attention_window_size": [2560, 128]},
        "draft": {"kv_cache_free_gpu_mem_fraction": 0.3},
        "batch_scheduler_policy": "max_utilization",
        "kv_cache_host_memory_bytes": 1024,
        "enable_chunked_context": True,
        "exclude_input_in_output": False,
        "max_queue_size": 7,
        "max_queue_delay_microseconds": 500,
        "cancellation_check_period_ms": 20,
        "text_instances": 3,
        "parameters": {"multi_block_mode": "false"},
    }
    repository = written(tmp_path, "draft_target", **said)
    target = parameters(repository, "tensorrt_llm")
    assert {
        "max_tokens_in_paged_kv_cache": "2560",
        "max_attention_window_size": "2560,128",
        "batch_scheduler_policy": "max_utilization",
        "kv_cache_host_memory_bytes": "1024",
        "enable_chunked_context": "true",
        "exclude_input_in_output": "false",
        "cancellation_check_period_ms": "20",
        "multi_block_mode": "false",
    }.items() <= target.items()
    assert parameters(repository, "tensorrt_llm_draft")["kv_cache_free_gpu_mem_fraction"] == "0.3"
    queue = config(repository, "tensorrt_llm").dynamic_batching
    assert queue.max_queue_delay_microseconds == 500
    assert queue.default_queue_policy.max_queue_size == 7
    assert config(repository, "preprocessing").instance_group[0].count == 3
    assert lint(repository) == []


def test_long_texts_are_read_in_chunks_where_they_do_not_fit_into_one_pass(tmp_path):
    recipe = made("ngram", "1.2.1", {"max_draft_len": 3}, {"max_num_tokens": 64})
    repository = write_repository(trt_built(tmp_path / "built", recipe), tmp_path / "r")
    assert parameters(repository, "tensorrt_llm")["enable_chunked_context"] == "true"


def test_half_precision_logits_are_declared_as_they_are(tmp_path):
    recipe = recipe_for("draft_target")
    built = trt_built(tmp_path / "built", recipe)
    half = write_engine(tmp_path / "half", recipe, "target", logits_dtype="float16")
    changed = BuiltModels(recipe, {**built.engines, "target": half}, built.tokenizers)
    repository = write_repository(changed, tmp_path / "r")
    types = {t.name: t.data_type for t in config(repository, "tensorrt_llm").input}
    assert types["draft_logits"] == 10  # TYPE_FP16
    assert lint(repository) == []


def test_fast_logits_go_between_participants(tmp_path):
    recipe = recipe_for("draft_target", fast_logits=True, placement="separate")
    document = recipe.model_dump(mode="json")
    document["speculation"]["use_draft_logits"] = True
    built = trt_built(tmp_path / "built", Recipe.model_validate(document))
    repository = write_repository(built, tmp_path / "r")
    for model, participant, gpu in (("tensorrt_llm", "1", "0"), ("tensorrt_llm_draft", "2", "1")):
        found = parameters(repository, model)
        assert found["speculative_decoding_fast_logits"] == "true"
        assert (found["participant_ids"], found["gpu_device_ids"]) == (participant, gpu)
        assert "max_tokens_in_paged_kv_cache" not in found  # nobody shares its GPU
    assert parameters(repository, "tensorrt_llm_bls")["speculative_decoding_fast_logits"] == "true"
    assert lint(repository) == []


@pytest.mark.parametrize(
    ("drafter", "version", "speculation", "said"),
    [
        (
            "eagle",
            "1.2.1",
            {"eagle_use_dynamic_tree": True, "eagle_dynamic_tree_max_top_k": 10},
            "no parameter for a dynamic tree",
        ),
        ("eagle", "1.2.1", {"posterior_threshold": 0.1}, "posterior_threshold"),
        ("lookahead", "0.16.0", {}, "since 0.19"),
    ],
)
def test_what_triton_cannot_tell_the_engine_is_refused(
    tmp_path, drafter, version, speculation, said
):
    built = trt_built(tmp_path / "built", made(drafter, version, speculation))
    with pytest.raises(RecipeError, match=said):
        write_repository(built, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_an_engine_of_other_ranks_than_the_recipe_is_refused(tmp_path, engines):
    recipe = recipe_for("draft_target", tp=2)
    with pytest.raises(RecipeError, match=r"has 1 rank\(s\), the recipe places 2"):
        write_repository(BuiltModels(recipe, engines.engines, engines.tokenizers), tmp_path / "r")


def test_something_that_is_no_engine_is_refused(tmp_path, engines):
    (tmp_path / "empty").mkdir()
    broken = {**engines.engines, "draft": tmp_path / "empty"}
    with pytest.raises(InputError, match="no engine directory"):
        write_repository(BuiltModels(engines.recipe, broken, engines.tokenizers), tmp_path / "r")


def test_copied_engines_are_named_by_where_the_repository_lies(tmp_path, engines):
    repository = write_repository(engines, tmp_path / "r", copy_engines=True)
    path = parameters(repository, "tensorrt_llm")["gpt_model_path"]
    assert path == str(repository / "tensorrt_llm/1/0-target-engine")
    assert json.loads((repository / "tensorrt_llm/1/0-target-engine/config.json").read_text())
    assert lint(repository) == []


BUNDLED = [
    path.relative_to(bundled("recipes")).with_suffix("").as_posix()
    for path in sorted(bundled("recipes").rglob("*.yaml"))
    if load_recipe(str(path)).backend == "tensorrt"
]
PLACEMENTS = {
    "as it is": [],
    "two groups of GPUs": ["serve.tensorrt.placement=separate"],
    "participants": ["serve.tensorrt.processes=participants"],
    "one GPU": ["target.parallel.tp=1"],
    "tp 2": ["target.parallel.tp=2"],
    "draft on all GPUs": ["speculation.draft.parallel.tp=4"],
}
RELEASES = ("0.16.0", "0.18.2", "0.19.0", "0.20.0", "1.0.0", "1.2.1")


def test_there_are_bundled_recipes_for_engines():
    assert len(BUNDLED) >= 8


@pytest.mark.parametrize("where", PLACEMENTS)
@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_recipes_lint_clean_in_every_placement(tmp_path, name, where):
    overrides = PLACEMENTS[where]
    if "draft" in where and "draft" not in load_recipe(name).models():
        return
    recipe = load_recipe(name, overrides)
    repository = write_repository(trt_built(tmp_path / "built", recipe), tmp_path / "r")
    assert lint(repository) == []


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_recipes_lint_clean_for_every_release(tmp_path, name, version):
    recipe = load_recipe(name, [f"tensorrt_llm={version}"])
    built = trt_built(tmp_path / "built", recipe)
    if recipe.speculation.drafter == "lookahead" and version < "0.19":
        with pytest.raises(RecipeError, match=r"since 0\.19"):
            write_repository(built, tmp_path / "r")
        return
    assert lint(write_repository(built, tmp_path / "r")) == []
