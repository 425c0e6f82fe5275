"""What the PyTorch backend accepts, and means or costs something that nobody is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.engine.llmapi.config_rules import judge
from toolkit.engine.llmapi.emit import block_reuse, llm_args, number_of, overlaps
from toolkit.engine.llmapi.profile import Profile
from toolkit.engine.llmapi.profiles import newer_than_known, profile
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.speculation.llmapi import LATE_1_3, latent_attention


def recipe_notes(recipe: Recipe) -> list[str]:
    """What is accepted, and means or costs something that nobody is told."""
    rules = profile(recipe.tensorrt_llm)
    return list(dict.fromkeys(_notes(recipe, rules)))


def _notes(recipe: Recipe, rules: Profile) -> Iterator[str]:
    release = f"TensorRT-LLM {recipe.tensorrt_llm}"
    if newer_than_known(recipe.tensorrt_llm):
        yield f"{release} is newer than any release known here; the probe decides when it starts"
    config = llm_args(recipe).get("speculative_config")
    for what, text in rules.unsure.items():
        if what in ("", recipe.speculation.drafter) or what in (config or {}):
            yield f"{release}: {f'{what}: ' if what else ''}{text}"
    if not config:
        return
    options, section = recipe.speculation, recipe.pytorch
    drafter, number = DRAFTERS[options.drafter], number_of(recipe)
    yield from judge(rules, config).warnings
    yield from drafter.llmapi_notes(recipe, number)
    if drafter.in_target_graph(options, number):
        if rules.sampling == "never":
            yield (
                f"{release} decodes greedily with {options.drafter}: temperature, top_k and top_p "
                "of a request are ignored without a word"
            )
        elif section.greedy_only and rules.sampling != "always":
            yield "greedy_only: temperature, top_k and top_p of a request are ignored"
        elif rules.sampling == "always" and not section.penalties:
            yield (
                "requests that ask for repetition penalties are rejected; "
                "pytorch.penalties: true takes them"
            )
        if number < LATE_1_3:
            for key in sorted({"max_concurrency", "draft_len_schedule"} & set(config)):
                yield (
                    f"{key}: {release} follows it for drafters beside the target's graph only; "
                    f"{options.drafter} goes on drafting as if it were not there"
                )
    if not overlaps(recipe) and section.overlap_scheduler is not False:
        yield f"the overlap scheduler is off: {options.drafter} drafts between the target's steps"
    if _chain_drafter_off(recipe):
        yield (
            "the overlap scheduler goes off by itself: a draft beside the target's graph keeps it "
            "only without guided decoding and schedule, and with attention backend TRTLLM"
        )
    if section.block_reuse and not block_reuse(recipe):
        yield f"block reuse is off: {release} switches it off when a draft runs beside the target"
    if section.rejection_sampling:
        yield "rejection sampling needs FlashInfer 0.6.4 or newer in the container"
    if options.draft_length.policy == "schedule" and rules.schedule_keys:
        yield (
            f"draft_len_schedule {config['draft_len_schedule']}: {release} reads a key as 'batch "
            f"{rules.schedule_keys} this'; other releases read it the other way"
        )
    yield _room(recipe)


def _chain_drafter_off(recipe: Recipe) -> bool:
    """Whether a second model loses its own graph, and with it the overlap scheduler."""
    section, options = recipe.pytorch, recipe.speculation
    drafter, number = DRAFTERS[options.drafter], number_of(recipe)
    beside = drafter.llmapi_draft(options) and not drafter.in_target_graph(options, number)
    reasons = (
        section.guided_decoding is not None,
        options.draft_length.policy == "schedule",
        section.attention_backend != "TRTLLM",
    )
    return bool(beside) and overlaps(recipe) and any(reasons)


def _room(recipe: Recipe) -> str:
    """Tokens of a step, and KV positions beyond max_seq_len, that drafting takes."""
    options, number = recipe.speculation, number_of(recipe)
    drafter = DRAFTERS[options.drafter]
    drafted = drafter.tokens_per_step(options) - 1
    inside = drafter.in_target_graph(options, number)
    more = (
        drafted
        + (1 + drafted if overlaps(recipe) else 0)
        + (options.max_draft_len - 1 if inside else 0)
    )
    return (
        f"a verify step takes {drafted + 1} tokens of each request through the model, and "
        f"TensorRT-LLM reserves {more} KV positions beyond max_seq_len for it"
    )


def model_notes(recipe: Recipe, target: Mapping[str, Any] | None) -> list[str]:
    """What the target's kind of attention switches off without a word."""
    section = recipe.pytorch
    if target and latent_attention(target) and (section.block_reuse or section.chunked_prefill):
        return [
            "the target has latent attention (MLA): block reuse and chunked prefill are off on "
            "GPUs other than sm_90, sm_100, sm_103 and sm_120"
        ]
    return []
