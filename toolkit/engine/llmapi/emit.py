"""From a recipe to the LLM API's configuration, in the words of its release."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from toolkit.engine.llmapi.profile import Profile
from toolkit.engine.llmapi.profiles import profile
from toolkit.recipe.release import FINAL, Version, version
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS

NOTHING: Mapping[str, Any] = MappingProxyType({})
DRAFT_DIR = "./draft"  # of a deployment, whose start scripts run in its directory
# Until here a drafter outside the target's graph switches block reuse off without a word.
TWO_MODELS_LOSE_REUSE: Version = (1, 2, 0, 0)


def number_of(recipe: Recipe) -> Version:
    """The recipe's release, which `profile` has accepted."""
    return version(recipe.tensorrt_llm) or (1, 2, 1, FINAL)


def speculative_config(recipe: Recipe, more: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    """The section of that name, in the release's words; empty for plain decoding.

    `more` are keys that only the prepared draft could tell.
    """
    wanted = wanted_config(recipe)
    if not wanted:
        return {}
    rules = profile(recipe.tensorrt_llm)
    kind = rules.methods[recipe.speculation.drafter].decoding_type
    config: dict[str, Any] = {"decoding_type": kind, **wanted, **more}
    if recipe.speculation.draft_length.policy == "schedule":
        config["draft_len_schedule"] = draft_len_schedule(recipe, rules)
    spelled = {rules.key(name): value for name, value in config.items()}
    return {**spelled, **recipe.pytorch.speculative_config}


def wanted_config(recipe: Recipe) -> dict[str, Any]:
    """The same in the newest words, without decoding_type and schedule: both mean by release."""
    options, section = recipe.speculation, recipe.pytorch
    rules, number = profile(recipe.tensorrt_llm), number_of(recipe)
    own = DRAFTERS[options.drafter].speculative_config(options, number)
    if not own or options.drafter not in rules.methods:
        return {}
    draft = draft_place(recipe)
    config: dict[str, Any] = {"speculative_model": draft} if draft else {}
    config |= own
    if section.max_concurrency is not None:
        config["max_concurrency"] = section.max_concurrency
    if gate := section.acceptance_gate:
        if gate.min_rate is not None:
            config["acceptance_rate_window_size"] = gate.window
            config["acceptance_rate_threshold"] = gate.min_rate
        if gate.min_accepted is not None:
            config["acceptance_window"] = gate.window
            config["acceptance_length_threshold"] = gate.min_accepted
    return config | _sampling(recipe, rules, number)


def draft_place(recipe: Recipe) -> str | None:
    """Where the draft lies for TensorRT-LLM: in the deployment, elsewhere, or on the hub."""
    draft = DRAFTERS[recipe.speculation.drafter].llmapi_draft(recipe.speculation)
    if draft is None:
        return None
    return DRAFT_DIR if draft.kind == "eagle3" else str(draft.source.checkpoint)


def draft_len_schedule(recipe: Recipe, rules: Profile) -> dict[int, int]:
    """The recipe's schedule (from each batch size on) as the release reads its keys."""
    steps = [(entry.batch, entry.draft_len) for entry in recipe.speculation.draft_length.schedule]
    if rules.schedule_keys != "at most":
        return dict(steps)
    last_batch, last_len = steps[-1]
    upper = {after - 1: length for (_, length), (after, _) in pairwise(steps)}
    if last_len:  # nothing is drafted above the largest key
        upper[max(last_batch, recipe.engine.max_batch_size)] = last_len
    return upper


def _sampling(recipe: Recipe, rules: Profile, number: Version) -> dict[str, Any]:
    """What makes a drafter in the target's graph follow temperature and top-p."""
    section, drafter = recipe.pytorch, DRAFTERS[recipe.speculation.drafter]
    config: dict[str, Any] = {}
    if (
        rules.sampling == "allow_advanced_sampling"
        and not section.greedy_only
        and drafter.in_target_graph(recipe.speculation, number)
    ):
        config["allow_advanced_sampling"] = True
    if section.rejection_sampling:
        config["use_rejection_sampling"] = True
    if section.penalties and rules.sampling == "always":
        config["enable_penalty"] = True
    return config


def llm_args(recipe: Recipe, more: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    """Everything that trtllm-serve and trtllm-bench are told besides the model's name.

    `more` are keys of speculative_config that only the prepared draft could tell.
    """
    engine, section = recipe.engine, recipe.pytorch
    rules = profile(recipe.tensorrt_llm)
    args: dict[str, Any] = {
        "dtype": recipe.target.dtype,
        "tensor_parallel_size": recipe.target.parallel.tp,
        "pipeline_parallel_size": recipe.target.parallel.pp,
        "max_batch_size": engine.max_batch_size,
        "max_input_len": engine.max_input_len,
        "max_seq_len": engine.max_seq_len,
        "kv_cache_config": {
            "enable_block_reuse": block_reuse(recipe),
            "free_gpu_memory_fraction": section.kv_cache_fraction,
        },
        "cuda_graph_config": {"max_batch_size": engine.max_batch_size, "enable_padding": True}
        if section.cuda_graphs
        else None,
        "disable_overlap_scheduler": not overlaps(recipe),
        "enable_iter_perf_stats": True,
    }
    if recipe.target.revision is not None:
        args["revision"] = recipe.target.revision
    if engine.max_num_tokens is not None:
        args["max_num_tokens"] = engine.max_num_tokens
    if "return_perf_metrics" in rules.llm_keys:
        args["return_perf_metrics"] = True
    if section.attention_backend != "TRTLLM":
        args["attn_backend"] = section.attention_backend
    if section.guided_decoding:
        args["guided_decoding_backend"] = section.guided_decoding
    if section.chunked_prefill:
        args["enable_chunked_prefill"] = True
    if config := speculative_config(recipe, more):
        args["speculative_config"] = config
    return merged(args, section.llm_args)


def merged(args: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`more` on top, section by section; graphs for named batch sizes need no largest one."""
    found = dict(args)
    for key, value in more.items():
        ours = found.get(key)
        if isinstance(value, Mapping) and isinstance(ours, Mapping):
            kept = dict(ours)
            if "batch_sizes" in value:
                kept.pop("max_batch_size", None)
            found[key] = {**kept, **value}
        else:
            found[key] = value
    return found


def overlaps(recipe: Recipe) -> bool:
    """Whether the overlap scheduler runs: where the drafter may, unless the recipe says no."""
    wanted = recipe.pytorch.overlap_scheduler
    allowed: bool = DRAFTERS[recipe.speculation.drafter].overlaps(
        recipe.speculation, number_of(recipe)
    )
    return allowed if wanted is None else wanted and allowed


def block_reuse(recipe: Recipe) -> bool:
    """Whether KV blocks of earlier prompts are kept, as far as the release really keeps them."""
    drafter = DRAFTERS[recipe.speculation.drafter]
    number = number_of(recipe)
    beside = not drafter.in_target_graph(recipe.speculation, number)
    has_draft = drafter.llmapi_draft(recipe.speculation) is not None
    lost = beside and has_draft and number < TWO_MODELS_LOSE_REUSE
    return recipe.pytorch.block_reuse and not lost
