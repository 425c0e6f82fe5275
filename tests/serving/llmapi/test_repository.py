"""What is written for a deployment of the LLM API, and what starts it."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

from tests.serving.llmapi.deployments import EAGLE3, deployed, recipe
from toolkit.errors import InputError, RecipeError
from toolkit.recipe.load import load_recipe
from toolkit.serving.lint import lint
from toolkit.serving.llmapi.launch import describe, launch_command
from toolkit.serving.llmapi.load import take_gpus
from toolkit.serving.llmapi.model_yaml import read_model_yaml
from toolkit.serving.pbtxt import parameters_of, parse
from toolkit.serving.repository import write_repository

# Read in upstream's config.pbtxt: what a client of its model may send and will get.
UPSTREAM_INPUTS = {
    "text_input", "streaming", "sampling_param_best_of", "sampling_param_temperature",
    "sampling_param_top_k", "sampling_param_top_p", "sampling_param_frequency_penalty",
    "sampling_param_presence_penalty", "sampling_param_max_tokens", "sampling_param_stop",
    "sampling_param_seed", "sampling_param_exclude_input_from_output",
    "sampling_param_return_perf_metrics", "return_finish_reason", "return_stop_reason",
    "return_cumulative_logprob", "stop",
}  # fmt: skip
UPSTREAM_OUTPUTS = {
    "text_output": "STRING", "finish_reason": "STRING", "stop_reason": "STRING",
    "cumulative_logprob": "FP32", "kv_cache_reused_block": "INT32",
    "kv_cache_missed_block": "INT32", "kv_cache_alloc_new_blocks": "INT32",
    "kv_cache_alloc_total_blocks": "INT32", "kv_cache_hit_rate": "FP32",
    "arrival_time_ns": "INT64", "first_scheduled_time_ns": "INT64",
    "first_token_time_ns": "INT64", "last_token_time_ns": "INT64", "acceptance_rate": "FP32",
    "total_accepted_draft_tokens": "INT32", "total_draft_tokens": "INT32",
}  # fmt: skip


def config_of(repository):
    return parse((repository / "tensorrt_llm/config.pbtxt").read_text())


def test_the_models_tensors_are_upstreams(tmp_path):
    from toolkit.serving.pbtxt import dtype_name

    config = config_of(write_repository(deployed(recipe(), tmp_path), tmp_path / "repo"))
    assert {tensor.name for tensor in config.input} == UPSTREAM_INPUTS
    assert {t.name: dtype_name(t.data_type) for t in config.output} == UPSTREAM_OUTPUTS
    assert [t.name for t in config.input if not t.optional] == ["text_input"]
    assert config.max_batch_size == 0
    assert config.model_transaction_policy.decoupled
    assert config.backend == "python"


def test_model_yaml_is_what_the_llm_is_called_with_and_upstreams_section(tmp_path):
    repository = write_repository(deployed(recipe(), tmp_path), tmp_path / "repo")
    document = yaml.safe_load((repository / "tensorrt_llm/1/model.yaml").read_text())
    section = document.pop("triton_config")
    assert section["max_batch_size"] == 0
    assert section["decoupled"] is True
    assert document["model"] == "org/target"
    assert document["speculative_config"]["decoding_type"] == "NGram"
    assert document["max_batch_size"] == 4
    assert lint(repository) == []


def test_a_draft_is_named_where_it_lies_or_where_it_was_copied(tmp_path):
    built = deployed(recipe(EAGLE3), tmp_path / "built", draft=True)
    there = write_repository(built, tmp_path / "there")
    args = read_model_yaml(there / "tensorrt_llm/1").llm_args
    draft = args["speculative_config"]["speculative_model_dir"]
    assert draft == str(built.engines["target"] / "draft")
    assert lint(there) == []

    copied = write_repository(built, tmp_path / "copied", copy_engines=True)
    shutil.rmtree(built.engines["target"])
    moved = tmp_path / "moved"
    copied.rename(moved)
    args = read_model_yaml(moved / "tensorrt_llm/1").llm_args
    draft = args["speculative_config"]["speculative_model_dir"]
    assert draft.startswith(str(moved))
    assert lint(moved) == []
    # And in the one that pointed elsewhere the draft is missed.
    assert ["no config.json in" in str(f) for f in lint(there) if f.level == "error"] == [True]


@pytest.mark.parametrize(
    ("serve", "parallel", "instances", "gpus", "words"),
    [
        ({}, {"tp": 1}, 1, None, "1 instance(s) of 1 rank(s)"),
        ({}, {"tp": 4}, 1, None, "1 instance(s) of 4 rank(s)"),
        (
            {"gpus": [[0, 1], [2, 3]]},
            {"tp": 2},
            2,
            "0,1;2,3",
            "2 instance(s) of 2 rank(s) on GPU 0,1;2,3",
        ),
        ({"nodes": 2}, {"tp": 8}, 1, None, "1 instance(s) of 8 rank(s) on 2 machines, 4 GPU(s)"),
    ],
)
def test_every_placement_lints_clean(tmp_path, serve, parallel, instances, gpus, words):
    given = recipe(
        target={"checkpoint": "org/target", "parallel": parallel}, serve={"pytorch": serve}
    )
    repository = write_repository(deployed(given, tmp_path), tmp_path / "repo")
    config = config_of(repository)
    assert [group.count for group in config.instance_group] == [instances]
    assert parameters_of(config).get("gpu_device_ids") == gpus
    assert describe(given).startswith(words)
    assert lint(repository) == []
    script = (repository / "launch.sh").read_text()
    assert '--model-repository="$repository"' in script
    assert "mpirun" not in script


def test_several_machines_are_started_by_srun():
    given = recipe(
        target={"checkpoint": "org/target", "parallel": {"tp": 8}},
        serve={"pytorch": {"nodes": 2}},
    )
    command = launch_command(given, "/repo")
    assert command[:7] == [
        "srun", "--mpi=pmix", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4",
        "trtllm-llmapi-launch", "/opt/tritonserver/bin/tritonserver",
    ]  # fmt: skip
    assert "--disable-auto-complete-config" in command


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        ({"gpus": [[0, 1]]}, r"serve\.pytorch\.gpus\[0\]: 2 GPU\(s\) for an instance of 4 rank"),
        ({"gpus": [[0, 1, 2, 3], [3, 4, 5, 6]]}, r"each rank needs a GPU of its own"),
        ({"nodes": 3}, r"serve\.pytorch\.nodes: 3 do not divide the target's 4 rank"),
        ({"nodes": 2, "gpus": [[0, 1, 2, 3]]}, "several machines serve one instance"),
    ],
)
def test_what_cannot_be_is_said_when_the_recipe_is_read(tmp_path, serve, said):
    document = {
        "name": "t", "backend": "pytorch",
        "target": {"checkpoint": "org/target", "parallel": {"tp": 4}},
        "speculation": {"drafter": "ngram"},
        "serve": {"pytorch": serve},
    }  # fmt: skip
    path = tmp_path / "r.yaml"
    path.write_text(json.dumps(document))
    with pytest.raises(RecipeError, match=said):
        load_recipe(str(path))


def test_an_instance_sees_its_gpus_only(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "TRTLLM_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "before")
    assert take_gpus("", 1, "tensorrt_llm_0_0") is None
    assert take_gpus("0,1;2,3", 2, "tensorrt_llm_0_1") == 2
    import os

    assert os.environ["CUDA_VISIBLE_DEVICES"] == os.environ["TRTLLM_VISIBLE_DEVICES"] == "2,3"
    assert take_gpus("5", 1, "tensorrt_llm_0_0") == 1
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
    with pytest.raises(InputError, match=r"1 list\(s\), 2 instance"):
        take_gpus("0,1", 2, "tensorrt_llm_0_1")
    with pytest.raises(InputError, match="gpu_device_ids is missing"):
        take_gpus("", 2, "tensorrt_llm_0_1")
