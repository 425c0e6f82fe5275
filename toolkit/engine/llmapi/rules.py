"""What TensorRT-LLM's PyTorch backend refuses, ignores or changes without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolkit.checkpoint.drafts.kinds import reduced_vocabulary_problem
from toolkit.checkpoint.source import kind_of
from toolkit.engine.llmapi.config_rules import judge
from toolkit.engine.llmapi.emit import (
    number_of,
    overlaps,
    speculative_config,
)
from toolkit.engine.llmapi.placement import placement_problems
from toolkit.engine.llmapi.profile import Profile
from toolkit.engine.llmapi.profiles import profile
from toolkit.errors import InputError, did_you_mean
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.speculation.llmapi import FieldPath

Problem = tuple[FieldPath, str]
DEFAULT_MAX_NUM_TOKENS = 8192
# Where the recipe says what a key of speculative_config came from.
_SAID_AT: Mapping[str, FieldPath] = {
    "decoding_type": ("speculation", "drafter"),
    "max_concurrency": ("pytorch", "max_concurrency"),
    "draft_len_schedule": ("speculation", "draft_length", "schedule"),
    "acceptance_window": ("pytorch", "acceptance_gate", "min_accepted"),
    "acceptance_length_threshold": ("pytorch", "acceptance_gate", "min_accepted"),
    "acceptance_rate_window_size": ("pytorch", "acceptance_gate", "min_rate"),
    "acceptance_rate_threshold": ("pytorch", "acceptance_gate", "min_rate"),
    "use_rejection_sampling": ("pytorch", "rejection_sampling"),
    "enable_penalty": ("pytorch", "penalties"),
    "eagle3_one_model": ("speculation", "one_model"),
    "dynamic_tree_max_topK": ("speculation", "dynamic_tree_max_top_k"),
}
# Keys of the LLM API that the recipe says elsewhere.
_LLM_ELSEWHERE = {
    "speculative_config": "speculation and pytorch.speculative_config",
    "model": "target.checkpoint",
    "backend": "backend",
    "dtype": "target.dtype",
    "revision": "target.revision",
    "tensor_parallel_size": "target.parallel.tp",
    "pipeline_parallel_size": "target.parallel.pp",
    "max_batch_size": "engine.max_batch_size",
    "max_input_len": "engine.max_input_len",
    "max_seq_len": "engine.max_seq_len",
    "max_num_tokens": "engine.max_num_tokens",
    "disable_overlap_scheduler": "pytorch.overlap_scheduler",
    "attn_backend": "pytorch.attention_backend",
    "guided_decoding_backend": "pytorch.guided_decoding",
    "enable_chunked_prefill": "pytorch.chunked_prefill",
}
_NEVER = {"trust_remote_code": "spectool never runs code that comes with a checkpoint; remove it"}


def recipe_problems(recipe: Recipe) -> list[Problem]:
    """Everything wrong that the recipe alone shows, once."""
    try:
        rules = profile(recipe.tensorrt_llm)
    except InputError as error:
        return [(("tensorrt_llm",), str(error).removeprefix("tensorrt_llm: "))]
    return list(dict.fromkeys(found for rule in _RULES for found in rule(recipe, rules)))


def model_problems(
    recipe: Recipe, target: Mapping[str, Any] | None, draft: Mapping[str, Any] | None = None
) -> list[Problem]:
    """What only config.json of the target and of the draft show, as far as they are known."""
    drafter, found = DRAFTERS[recipe.speculation.drafter], []
    if target is not None:
        found += list(drafter.llmapi_model_problems(recipe, number_of(recipe), target))
    for path, config in {("target",): target, ("speculation", "draft"): draft}.items():
        if config and (problem := reduced_vocabulary_problem(config)):
            found.append(((*path, "checkpoint"), problem))
    if draft is not None:
        found += list(drafter.llmapi_draft_problems(recipe.speculation, draft))
    return found


def _drafter(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    yield from DRAFTERS[recipe.speculation.drafter].llmapi_problems(recipe, number_of(recipe))


def _config(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    """The release's own checks, on what would be written."""
    policy = recipe.speculation.draft_length.policy
    if policy == "schedule" and not recipe.speculation.draft_length.schedule:
        return  # said elsewhere, and nothing can be written
    config, given = speculative_config(recipe), recipe.pytorch.speculative_config
    for key in _written_elsewhere(recipe):
        yield (
            ("pytorch", "speculative_config", key),
            "the recipe's other fields say it; remove it here",
        )
    if not config:
        return
    for key, text in judge(rules, config).problems:
        if key in given:
            yield ("pytorch", "speculative_config", key), text
        else:
            yield _SAID_AT.get(key, ("speculation", key)), text


def _written_elsewhere(recipe: Recipe) -> list[str]:
    plain = recipe.model_copy(
        update={"pytorch": recipe.pytorch.model_copy(update={"speculative_config": {}})}
    )
    return [key for key in recipe.pytorch.speculative_config if key in speculative_config(plain)]


def _checkpoints(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    target = recipe.target
    if target.quantization is not None:
        yield (
            ("target", "quantization"),
            "the PyTorch backend loads a checkpoint as it is; name a quantised one (its "
            "hf_quant_config.json says how) and remove this",
        )
    if target.tokenizer is not None:
        yield (
            ("target", "tokenizer"),
            "the PyTorch backend loads the tokenizer that lies with the checkpoint; name another "
            "one in pytorch.llm_args.tokenizer and remove this",
        )
    if target.layers is not None:
        yield ("target", "layers"), "TensorRT-LLM loads whole checkpoints; remove it"
    places: dict[FieldPath, str] = {("target",): target.checkpoint}
    if draft := DRAFTERS[recipe.speculation.drafter].llmapi_draft(recipe.speculation):
        name = "draft" if hasattr(recipe.speculation, "draft") else "heads"
        places[("speculation", name)] = draft.source.checkpoint
        if draft.kind == "model" and draft.source.revision is not None:
            yield (
                ("speculation", name, "revision"),
                "TensorRT-LLM fetches a draft at its newest commit; download this revision and "
                "name the directory",
            )
    for where, checkpoint in places.items():
        try:
            kind = kind_of(checkpoint)
        except InputError:
            continue  # building says so, with the place
        if kind not in ("directory", "hub"):
            yield (
                (*where, "checkpoint"),
                f"{checkpoint}: TensorRT-LLM reads Hugging Face checkpoints only (a directory or "
                "a hub id)",
            )


def _parallel(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    pp = recipe.target.parallel.pp
    if pp > 1 and recipe.speculation.drafter != "none":
        yield (
            ("target", "parallel", "pp"),
            f"{pp}: no release speculates with pipeline parallelism; use tp, or drafter: none",
        )


def _draft_length(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    options = recipe.speculation
    length, where = options.draft_length, ("speculation", "draft_length", "policy")
    if length.policy in ("adaptive", "confidence", "throughput"):
        yield (
            where,
            f"{length.policy}: TensorRT-LLM has one draft length for a whole batch; use fixed or "
            "schedule",
        )
    if length.policy != "schedule" or not length.schedule:
        return
    drafter = DRAFTERS[options.drafter]
    if not drafter.follows_schedule(options, number_of(recipe)):
        yield where, f"{options.drafter}: its draft length cannot change here; use fixed"
    first = length.schedule[0]
    if first.batch != 1 or first.draft_len != options.max_draft_len:
        yield (
            ("speculation", "draft_length", "schedule"),
            f"TensorRT-LLM wants max_draft_len ({options.max_draft_len}) at batch 1, the schedule "
            f"starts with draft_len {first.draft_len} at batch {first.batch}",
        )


def _scheduler(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    section, options = recipe.pytorch, recipe.speculation
    if section.overlap_scheduler and not overlaps(recipe):
        yield (
            ("pytorch", "overlap_scheduler"),
            f"true, but TensorRT-LLM {recipe.tensorrt_llm} switches it off for {options.drafter}; "
            "remove it",
        )
    if section.attention_backend == "FLASHINFER" and section.block_reuse:
        yield (
            ("pytorch", "block_reuse"),
            "FLASHINFER switches it off without a word; set it to false, or take another "
            "attention_backend",
        )
    needed = recipe.engine.max_batch_size * DRAFTERS[options.drafter].tokens_per_step(options)
    allowed = recipe.engine.max_num_tokens or DEFAULT_MAX_NUM_TOKENS
    if needed > allowed:
        yield (
            ("engine", "max_num_tokens"),
            f"{allowed}, but one step of {recipe.engine.max_batch_size} requests takes {needed} "
            f"tokens ({needed // recipe.engine.max_batch_size} each); raise it, or lower "
            "max_batch_size or max_draft_len",
        )


def _sampling(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    section, drafter = recipe.pytorch, DRAFTERS[recipe.speculation.drafter]
    inside = drafter.in_target_graph(recipe.speculation, number_of(recipe))
    if not speculative_config(recipe):
        return
    if (
        inside
        and recipe.tune.sampling.temperature > 0
        and (rules.sampling == "never" or (section.greedy_only and rules.sampling != "always"))
    ):
        remedy = (
            "set pytorch.greedy_only: false"
            if rules.sampling != "never"
            else "use TensorRT-LLM 1.2 or newer, or a drafter outside the graph (ngram, "
            "draft_target)"
        )
        yield (
            ("tune", "sampling", "temperature"),
            f"{recipe.tune.sampling.temperature:g} would be ignored: drafters in the target's "
            f"graph decode greedily here; {remedy}",
        )
    if (
        section.rejection_sampling
        and section.guided_decoding
        and (recipe.speculation.drafter != "eagle3")
    ):
        yield (
            ("pytorch", "rejection_sampling"),
            "cannot be combined with guided_decoding for this drafter; remove one of the two",
        )
    if section.penalties and inside and rules.sampling != "always":
        yield (
            ("pytorch", "penalties"),
            "drafters in the target's graph know no penalties before late previews of 1.3; "
            "remove it",
        )


def _gate(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    gate = recipe.pytorch.acceptance_gate
    if gate and (gate.min_rate is None) == (gate.min_accepted is None):
        yield (
            ("pytorch", "acceptance_gate"),
            "say one of min_rate (late previews of 1.3 on) and min_accepted (before)",
        )


def _more_args(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    for key in recipe.pytorch.llm_args:
        where = ("pytorch", "llm_args", key)
        if key in _NEVER:
            yield where, _NEVER[key]
        elif key in _LLM_ELSEWHERE:
            yield where, f"the recipe says it in {_LLM_ELSEWHERE[key]}; remove it here"
        elif key not in rules.llm_keys:
            yield (
                where,
                f"not a key of TensorRT-LLM {rules.name} that spectool knows"
                f"{did_you_mean(key, rules.llm_keys)}",
            )


def _other_samplers(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    """What only plain decoding may be combined with."""
    more, drafter = recipe.pytorch.llm_args, recipe.speculation.drafter
    if not speculative_config(recipe):
        return
    if more.get("sampler_type") == "TRTLLMSampler":
        yield (
            ("pytorch", "llm_args", "sampler_type"),
            f"TRTLLMSampler cannot verify drafts; remove it (drafter: {drafter})",
        )
    if (more.get("max_beam_width") or 1) != 1:
        yield (
            ("pytorch", "llm_args", "max_beam_width"),
            f"{more['max_beam_width']}; no drafter works with beam search, remove it",
        )


def _graphs(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    where = ("pytorch", "llm_args", "cuda_graph_config")
    graphs = recipe.pytorch.llm_args.get("cuda_graph_config")
    if not isinstance(graphs, Mapping):
        return
    if {"batch_sizes", "max_batch_size"} <= set(graphs):
        yield (*where, "max_batch_size"), "follows from batch_sizes, and must not differ; remove it"
    schedule = recipe.speculation.draft_length.policy == "schedule"
    if schedule and graphs.get("enable_padding") is False:
        yield (*where, "enable_padding"), "false; a schedule needs padded batches, remove it"


def _placement(recipe: Recipe, rules: Profile) -> Iterator[Problem]:
    return placement_problems(recipe)


_RULES: tuple[Callable[[Recipe, Profile], Iterator[Problem]], ...] = (
    _checkpoints, _parallel, _drafter, _config, _draft_length, _scheduler, _sampling, _gate,
    _more_args, _other_samplers, _graphs, _placement,
)  # fmt: skip
