"""Rules about models: their heads, quantisation, architecture, parallelism, and the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checkpoint.drafts.kinds import reduced_vocabulary_problem
from toolkit.engine.trtllm.case import Case, Problem
from toolkit.engine.trtllm.gpus import shown
from toolkit.registry import DRAFTERS, FAMILIES

_OLDEST_WITH = {"Qwen3ForCausalLM": (1, 0)}


def _quantized_target(case: Case) -> Iterator[Problem]:
    possible = DRAFTERS[case.recipe.speculation.drafter].quantizations
    chosen = case.model.quantization
    if case.role == "target" and possible is not None and chosen and chosen not in possible:
        yield (
            (*case.where, "quantization"),
            f"{chosen!r}; TensorRT-LLM fails to build {case.recipe.speculation.drafter} heads on a "
            f"quantised target: use {' or '.join(sorted(possible)) or 'null'}",
        )


def _pipeline(case: Case) -> Iterator[Problem]:
    size = case.model.parallel.pp
    if case.speculates and size > 1:
        yield (
            (*case.where, "parallel", "pp"),
            f"{size}; speculative decoding has no pipeline parallelism: use parallel.tp",
        )


def _gpu(case: Case) -> Iterator[Problem]:
    sm, drafter = case.sm, case.recipe.speculation.drafter
    if sm is None:
        return
    if case.speculates and sm < 80:
        yield (
            ("tensorrt", "gpu"),
            f"{shown(sm)}; {drafter} needs {shown(80)} (A100) or newer: use drafter: none",
        )
    integer = {"W8A16", "W4A16"} & {case.quantized("quant_algo")}
    smooth = str(case.quantized("quant_algo")).startswith("W8A8_SQ")
    if case.release >= (1, 2) and 100 <= sm < 120:
        if integer or smooth:
            yield (
                (*case.where, "quantization"),
                f"{case.quantized('quant_algo')} is refused on Blackwell ({shown(sm)}) by "
                f"TensorRT-LLM {case.recipe.tensorrt_llm}: use nvfp4, fp8 or null",
            )
        if case.quantized("kv_cache_quant_algo") == "INT8":
            yield (
                (*case.where, "checkpoint"),
                f"int8 KV cache is refused on Blackwell ({shown(sm)}) by TensorRT-LLM "
                f"{case.recipe.tensorrt_llm}: use an fp8 or a plain KV cache",
            )


def _architecture(case: Case) -> Iterator[Problem]:
    name = str(case.pretrained.get("architecture"))
    if name not in FAMILIES:
        return  # not known yet, or one with heads, which the base had to allow
    oldest = _OLDEST_WITH.get(name)
    if oldest and case.release < oldest:
        number = ".".join(map(str, oldest))
        yield (
            ("tensorrt_llm",),
            f"{case.recipe.tensorrt_llm} has no {name} ({case.role}); it came with {number}",
        )
    drafter = DRAFTERS[case.recipe.speculation.drafter]
    possible = drafter.architectures(case.release)
    if case.role == "target" and possible is not None and name not in possible:
        yield (
            ("speculation", "drafter"),
            f"{case.recipe.speculation.drafter} engines of TensorRT-LLM "
            f"{case.recipe.tensorrt_llm} exist for {', '.join(sorted(possible))}; "
            f"the target is {name}",
        )


def _heads(case: Case) -> Iterator[Problem]:
    """Upstream builds a mode on a checkpoint without its heads, and then cannot run the engine."""
    if not case.final or case.role != "target":
        return
    options = case.recipe.speculation
    for key, wanted in DRAFTERS[options.drafter].checkpoint_fields(options).items():
        if key not in case.pretrained:
            yield (
                ("speculation", "drafter"),
                f"the checkpoint is a plain {case.pretrained.get('architecture')} without {key}; "
                f"an engine with mode {case.mode!r} could not run: convert it with its heads",
            )
        elif wanted is not None and case.pretrained[key] != wanted:
            yield (
                ("speculation", key),
                f"{wanted}, but the checkpoint's config.json says {case.pretrained[key]}; both "
                "must agree: convert again",
            )
    if case.mode is None and (count := case.pretrained.get("num_medusa_heads")):
        yield (
            ("speculation", "drafter"),
            f"the checkpoint has {count} Medusa heads, which an engine without mode 'medusa' "
            "never uses: use drafter: medusa",
        )


def _draft_len(case: Case) -> Iterator[Problem]:
    if case.mode and not case.flags.get("max_draft_len"):
        yield (
            ("speculation", "max_draft_len"),
            f"0; an engine with mode {case.mode!r} must draft at least one token",
        )


def _vocabulary(case: Case) -> Iterator[Problem]:
    if problem := reduced_vocabulary_problem(case.pretrained):
        yield (*case.where, "checkpoint"), problem


MODEL_RULES = (_draft_len, _vocabulary, _quantized_target, _pipeline, _gpu, _architecture, _heads)
