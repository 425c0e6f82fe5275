"""Rules about flags that contradict each other, the mode, or the way engines are run."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.engine.trtllm.case import Case, Problem
from toolkit.engine.trtllm.command import drafter_flags

_FP8_WEIGHTS = ("FP8", "W4A8_AWQ", "NVFP4")


def _flag(case: Case, name: str, wrong: bool, text: str) -> Iterator[Problem]:
    if wrong:
        yield ("tensorrt", "flags", name), text


def _beams(case: Case) -> Iterator[Problem]:
    width = case.value("max_beam_width")
    yield from _flag(
        case,
        "max_beam_width",
        case.speculates and width != 1,
        f"{width}; speculative decoding has no beam search: use 1, or drafter: none",
    )


def _paged_kv_cache(case: Case) -> Iterator[Problem]:
    kind = case.value("kv_cache_type")
    yield from _flag(
        case,
        "kv_cache_type",
        kind != "paged",
        f"{kind!r}; the executor runs in-flight batching on a paged KV cache only: remove it",
    )
    yield from _flag(
        case,
        "paged_kv_cache",
        "paged_kv_cache" in case.flags,
        "deprecated; the KV cache is always paged: remove it",
    )


def _context_logits(case: Case) -> Iterator[Problem]:
    drafted = case.flags.get("max_draft_len", 0)
    for name in ("gather_context_logits", "gather_all_token_logits"):
        yield from _flag(
            case,
            name,
            bool(case.value(name)) and drafted != 0,
            f"cannot be gathered with draft tokens (max_draft_len {drafted}): remove it",
        )


def _profiles(case: Case) -> Iterator[Problem]:
    yield from _flag(
        case,
        "multiple_profiles",
        case.value("multiple_profiles") == "enable" and "opt_num_tokens" in case.flags,
        "'enable' excludes opt_num_tokens: remove one of the two",
    )


def _fusions(case: Case) -> Iterator[Problem]:
    name = str(case.pretrained.get("architecture", ""))
    yield from _flag(
        case,
        "reduce_fusion",
        case.value("reduce_fusion") == "enable" and case.model.parallel.tp == 1,
        f"'enable' needs tensor parallelism, and {case.role} has parallel.tp 1: remove it",
    )
    yield from _flag(
        case,
        "reduce_fusion",
        case.value("reduce_fusion") == "enable"
        and bool(name)
        and not name.startswith(("Llama", "Medusa", "Gemma2")),
        f"'enable' is for Llama, Medusa and Gemma 2, {case.role} is {name}: remove it",
    )
    yield from _flag(
        case,
        "pp_reduce_scatter",
        case.value("pp_reduce_scatter") == "enable" and bool(name) and "Mixtral" not in name,
        f"'enable' is for Mixtral, {case.role} is {name}: remove it",
    )
    yield from _flag(
        case,
        "streamingllm",
        case.value("streamingllm") == "enable",
        "'enable' does not go with the paged KV cache's kernels any more: remove it",
    )


def _block_reuse(case: Case) -> Iterator[Problem]:
    """KV block reuse needs paged context FMHA, which some quantised KV caches exclude."""
    if drafter_flags(case.recipe, case.role).get("use_paged_context_fmha") != "enable":
        return
    drafter, kv = case.recipe.speculation.drafter, case.quantized("kv_cache_quant_algo")
    yield from _flag(
        case,
        "context_fmha",
        case.value("context_fmha") == "disable",
        f"'disable', but drafter {drafter!r} needs paged context FMHA: remove it",
    )
    if kv == "INT8":
        yield (
            (*case.where, "checkpoint"),
            f"int8 KV cache excludes paged context FMHA, which drafter {drafter!r} needs; "
            "use a checkpoint with an fp8 or a plain KV cache",
        )
    weights = case.quantized("quant_algo")
    if kv == "FP8" and weights not in _FP8_WEIGHTS:
        yield (
            (*case.where, "checkpoint"),
            f"fp8 KV cache with {weights or 'unquantised'} weights excludes paged context FMHA, "
            f"which drafter {drafter!r} needs; use fp8 weights too, or a plain KV cache",
        )


FLAG_RULES = (_beams, _paged_kv_cache, _context_logits, _profiles, _fusions, _block_reuse)
