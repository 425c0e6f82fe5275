"""The releases: class and key names, discriminators, what is refused and what changed meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from toolkit.engine.llmapi.profile import Method, Profile
from toolkit.errors import InputError
from toolkit.recipe.release import FINAL, Version, version

_BASE_10 = frozenset({"max_draft_len", "speculative_model_dir"})
_BASE_11 = _BASE_10 | {"max_concurrency", "load_format"}
_GATE_OLD = {"acceptance_window", "acceptance_length_threshold"}
_BASE_12_PREVIEW = _BASE_11 | _GATE_OLD | {"max_total_draft_tokens"}
_BASE_12 = (_BASE_12_PREVIEW - {"speculative_model_dir"}) | {
    "speculative_model", "draft_len_schedule", "allow_advanced_sampling",
}  # fmt: skip
_BASE_13 = _BASE_12
_BASE_13_LATE = (_BASE_13 - _GATE_OLD) | {
    "acceptance_rate_window_size", "acceptance_rate_threshold", "use_rejection_sampling",
    "advanced_sampling_mode", "enable_penalty",
}  # fmt: skip
_BASE_14 = _BASE_13_LATE | {"moe_backend", "spec_dec_variant"}
_BASE_14_RC4 = _BASE_14 | {"moe_tactic"}

_EAGLE_10 = frozenset({
    "eagle_choices", "greedy_sampling", "posterior_threshold", "use_dynamic_tree",
    "dynamic_tree_max_topK", "num_eagle_layers", "max_non_leaves_per_layer", "eagle3_one_model",
})  # fmt: skip
_EAGLE_11 = _EAGLE_10 | {"eagle3_layers_to_capture"}
_EAGLE_12 = _EAGLE_11 | {"eagle3_model_arch"}
_EAGLE_13_LATE = _EAGLE_12 | {"sa_config"}
_EAGLE_RC27 = _EAGLE_13_LATE - {"greedy_sampling", "posterior_threshold", "eagle3_one_model"}
_EAGLE_14 = _EAGLE_RC27 - {"eagle_choices"}
_EAGLE_14_RC4 = _EAGLE_14 - {"num_eagle_layers"}

_MTP_10 = frozenset({
    "num_nextn_predict_layers", "use_relaxed_acceptance_for_thinking", "relaxed_topk",
    "relaxed_delta", "use_mtp_vanilla", "BEGIN_THINKING_PHASE_TOKEN", "END_THINKING_PHASE_TOKEN",
})  # fmt: skip
_MTP_12_PREVIEW = _MTP_10 | {"mtp_eagle_one_model"}
_MTP_12 = (_MTP_12_PREVIEW - {"BEGIN_THINKING_PHASE_TOKEN", "END_THINKING_PHASE_TOKEN"}) | {
    "begin_thinking_phase_token", "end_thinking_phase_token",
}  # fmt: skip
_MTP_13_LATE = _MTP_12 | {"use_dynamic_tree", "dynamic_tree_max_topK", "sa_config"}
_MTP_RC27 = _MTP_13_LATE - {"mtp_eagle_one_model"}
_MTP_14_RC4 = _MTP_RC27 | {"draft_lm_head_dtype", "draft_moe_dtype"}

_NGRAM = frozenset({
    "max_matching_ngram_size", "is_keep_all", "is_use_oldest", "is_public_pool",
})  # fmt: skip
_SA = frozenset({"max_matching_ngram_size", "enable_global_pool", "global_pool_size"})
_PARD = frozenset({"mask_token_id"})
_DFLASH = frozenset({"mask_token_id", "target_layer_ids", "attention_backend"})
_DSPARK = _DFLASH | {"block_size", "markov_rank", "markov_head_type"}
_DFLASH_14 = _DFLASH | {"context_recompute_tail", "skip_ctx_buffer_budget_check"}
_DSPARK_14_RC4 = _DSPARK | {
    "enable_confidence_scheduling", "confidence_cost_table_path", "confidence_calibration_path",
    "confidence_min_predicted_gain", "enable_fused_confidence_scheduler",
}  # fmt: skip

_LLM_10 = frozenset({
    "max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len", "max_beam_width", "dtype",
    "tensor_parallel_size", "pipeline_parallel_size", "kv_cache_config", "cuda_graph_config",
    "disable_overlap_scheduler", "attn_backend", "guided_decoding_backend", "load_format",
    "enable_iter_perf_stats", "enable_iter_req_stats", "print_iter_log", "stream_interval",
    "enable_chunked_prefill", "enable_attention_dp", "moe_expert_parallel_size", "moe_config",
    "scheduler_config", "speculative_config", "reasoning_parser", "quant_config",
    "revision", "tokenizer",
})  # fmt: skip
_LLM_11 = _LLM_10 | {"sampler_type"}
_LLM_12 = _LLM_11 | {"return_perf_metrics", "perf_metrics_max_requests", "context_parallel_size"}
_LLM_13_LATE = (_LLM_12 - {"sampler_type"}) | {"perf_metrics_output_dir", "max_stats_len"}


def _methods(
    base: frozenset[str],
    *,
    eagle: frozenset[str],
    mtp: frozenset[str],
    draft_target: str,
    more: Mapping[str, Method] | None = None,
) -> dict[str, Method]:
    def method(name: str, kind: str, keys: frozenset[str], draft: bool = False) -> Method:
        return Method(class_name=name, decoding_type=kind, keys=base | keys, needs_draft=draft)

    others = {name: replace(entry, keys=base | entry.keys) for name, entry in (more or {}).items()}
    return {
        # `Eagle` is what every release takes; those that also know Eagle3 read it as that.
        "eagle3": method("EagleDecodingConfig", "Eagle", eagle, True),
        "draft_target": method("DraftTargetDecodingConfig", draft_target, frozenset(), True),
        "mtp": method("MTPDecodingConfig", "MTP", mtp),
        "ngram": method("NGramDecodingConfig", "NGram", _NGRAM),
        **others,
    }


def _own_class(name: str, keys: frozenset[str], *, draft: bool = True) -> Method:
    return Method(
        class_name=f"{name}DecodingConfig", decoding_type=name, keys=keys, needs_draft=draft
    )


_PARD_13 = {"pard": _own_class("PARD", _PARD), "eagle3": _own_class("Eagle3", _EAGLE_12)}
_LATE = {
    "eagle3": _own_class("Eagle3", _EAGLE_13_LATE),
    "pard": _own_class("PARD", _PARD | {"sa_config"}),
    "dflash": _own_class("DFlash", _DFLASH),
    "dspark": _own_class("DSpark", _DSPARK),
    "sa": _own_class("SA", _SA, draft=False),
}
_LATE_14 = {
    **_LATE,
    "eagle3": _own_class("Eagle3", _EAGLE_14),
    "dflash": _own_class("DFlash", _DFLASH_14),
}

_GONE = {
    "Medusa": "its heads run in engines only: backend: tensorrt, or an EAGLE-3 head here",
    "Lookahead": "it runs in engines only: backend: tensorrt, or drafter: ngram here",
    "pytorch_weights_path": "write {draft_key}",
    "max_batch_size": "it stands at the top level of llm_args, not in speculative_config",
    "draft_model": "write {draft_key}",
}
_OLD_GATE = (
    "write acceptance_window and acceptance_length_threshold: the mean number of accepted tokens "
    "per iteration over completed requests"
)
_NEW_GATE = (
    "write acceptance_rate_window_size and acceptance_rate_threshold: accepted over drafted tokens "
    "(0..1) over iterations, which is another number"
)
_FIXES_OLD = {
    **_GONE,
    "Eagle3": "write Eagle, which means EAGLE-3 on this backend",
    "Draft_Target": "write DraftTarget",
    "speculative_model": "write speculative_model_dir",
    "draft_len_schedule": (
        "this release has none; max_concurrency switches speculation off above a batch size"
    ),
    "acceptance_rate_window_size": _OLD_GATE,
    "acceptance_rate_threshold": _OLD_GATE,
    "sa_config": "suffix matching came with 1.3; remove it",
    "use_sa_spec": "suffix matching came with 1.3; remove it",
    "sa_spec_threshold": "suffix matching came with 1.3; remove it",
    "PARD": "it came with TensorRT-LLM 1.3",
    "SA": "it came with late previews of TensorRT-LLM 1.3; use NGram",
    "DFlash": "it came with late previews of TensorRT-LLM 1.3",
    "DSpark": "it came with late previews of TensorRT-LLM 1.3",
}
_FIXES_13 = {
    **{k: v for k, v in _FIXES_OLD.items() if k not in
       {"Eagle3", "Draft_Target", "speculative_model", "draft_len_schedule", "PARD"}},
    "DraftTarget": "write Draft_Target",
    "sa_config": "this preview has none; it came with later ones of 1.3",
    "use_sa_spec": "this preview has none; sa_config came with later ones of 1.3",
}  # fmt: skip
_FIXES_LATE = {
    **_GONE,
    "DraftTarget": "write Draft_Target",
    "acceptance_window": _NEW_GATE,
    "acceptance_length_threshold": _NEW_GATE,
    "use_sa_spec": "write sa_config: {{threshold: 4}}",
    "sa_spec_threshold": "write sa_config: {{threshold: ...}}",
    "Medusa": "its class is gone; engines of TensorRT-LLM up to 1.2 have it (backend: tensorrt)",
    "Lookahead": "its class is gone; engines of TensorRT-LLM up to 1.2 have it, SA is nearest here",
}

_P10 = Profile(
    name="1.0",
    since=(1, 0, 0, 0),
    read_in="llm_args.py of 1.0.0 and the documentation of that release",
    methods=_methods(_BASE_10, eagle=_EAGLE_10, mtp=_MTP_10, draft_target="DraftTarget"),
    spelling={
        "speculative_model": "speculative_model_dir",
        "begin_thinking_phase_token": "BEGIN_THINKING_PHASE_TOKEN",
        "end_thinking_phase_token": "END_THINKING_PHASE_TOKEN",
    },
    aliases={},
    fixes={
        **_FIXES_OLD,
        "max_concurrency": "it came with 1.1; remove it",
        "acceptance_window": "the gate came with 1.2; remove it",
        "acceptance_length_threshold": "the gate came with 1.2; remove it",
    },
    schedule_keys=None,
    sampling="never",
    draft_len_checked=False,
    dynamic_tree=False,
    total_draft_tokens_required=True,
    two_models=True,
    llm_keys=_LLM_10,
    config_option="--extra_llm_api_options",
)
_P11 = replace(
    _P10,
    name="1.1",
    since=(1, 1, 0, 0),
    read_in="1.0.0 and 1.2.0rc2, between which it lies",
    methods=_methods(_BASE_11, eagle=_EAGLE_11, mtp=_MTP_10, draft_target="DraftTarget"),
    fixes={k: v for k, v in _P10.fixes.items() if k != "max_concurrency"},
    llm_keys=_LLM_11,
    unsure={"": "which keys it added to 1.0's could not be read; the probe looks at its classes"},
)
_P12_PREVIEW = replace(
    _P11,
    name="1.2 early previews",
    since=(1, 2, 0, 0),
    read_in="llm_args.py of 1.2.0rc2",
    methods=_methods(
        _BASE_12_PREVIEW, eagle=_EAGLE_11, mtp=_MTP_12_PREVIEW, draft_target="DraftTarget"
    ),
    fixes=_FIXES_OLD,
    unsure={},
    llm_keys=_LLM_12,
)
_P12 = replace(
    _P12_PREVIEW,
    name="1.2",
    since=(1, 2, 0, 6),
    read_in="the keys of 1.2.1 and the tutorial of its container",
    methods=_methods(_BASE_12, eagle=_EAGLE_12, mtp=_MTP_12, draft_target="Draft_Target"),
    # What releases before and after take as well; newer ones read it as speculative_model.
    spelling={
        "speculative_model": "speculative_model_dir",
    },
    aliases={"speculative_model_dir": "speculative_model"},
    fixes={k: v for k, v in _FIXES_13.items() if k != "DraftTarget"} | {
        "DraftTarget": "write Draft_Target; the probe writes the other where it must",
        "PARD": "it came with TensorRT-LLM 1.3",
        "Eagle3": "write Eagle, which every release takes",
    },
    schedule_keys="at least",
    sampling="allow_advanced_sampling",
    unsure={
        "draft_target": "decoding_type is DraftTarget or Draft_Target, which differs within 1.2; "
        "the probe decides when it starts"
    },
)  # fmt: skip
_P13 = replace(
    _P12,
    name="1.3 early previews",
    since=(1, 3, 0, 0),
    read_in="llm_args.py of main, early 2026",
    methods=_methods(
        _BASE_13, eagle=_EAGLE_12, mtp=_MTP_12, draft_target="Draft_Target", more=_PARD_13
    ),
    spelling={},
    fixes=_FIXES_13,
    draft_len_checked=True,
    dynamic_tree=True,
    config_option="--config",
    unsure={},
)
_P13_LATE = replace(
    _P13,
    name="1.3 late previews",
    since=(1, 3, 0, 15),
    read_in="llm_args.py of main, mid 2026",
    methods=_methods(
        _BASE_13_LATE, eagle=_EAGLE_13_LATE, mtp=_MTP_13_LATE, draft_target="Draft_Target",
        more=_LATE,
    ),
    spelling={},
    fixes=_FIXES_LATE,
    schedule_keys="at most",
    sampling="always",
    total_draft_tokens_required=False,
    two_models=False,
    llm_keys=_LLM_13_LATE,
    deprecated={
        "allow_advanced_sampling": "ignored: sampling is detected",
        "num_nextn_predict_layers": "another name of max_draft_len",
        "max_concurrency": "turned into draft_len_schedule {max_concurrency: max_draft_len}",
        "eagle3_one_model": "ignored: drafters always run in the target's graph",
        "mtp_eagle_one_model": "ignored: drafters always run in the target's graph",
    },
    unsure={
        "draft_len_schedule": "which preview of 1.3 turned the meaning of its keys around is not "
        "known; the probe asks the installed class"
    },
)  # fmt: skip
_P13_RC27 = replace(
    _P13_LATE,
    name="1.3",
    since=(1, 3, 0, 27),
    read_in="the documentation of 1.3.0rc27",
    methods=_methods(
        _BASE_13_LATE, eagle=_EAGLE_RC27, mtp=_MTP_RC27, draft_target="Draft_Target",
        more={**_LATE, "eagle3": _own_class("Eagle3", _EAGLE_RC27)},
    ),
    fixes={
        **_FIXES_LATE,
        "greedy_sampling": "gone: sampling is detected; remove it",
        "posterior_threshold": "gone; remove it",
        "eagle3_one_model": "gone: the head always runs in the target's graph; remove it",
        "mtp_eagle_one_model": "gone: MTP always runs in the target's graph; remove it",
    },
    unsure={},
)  # fmt: skip
_P14 = replace(
    _P13_RC27,
    name="1.4 previews",
    since=(1, 4, 0, 0),
    read_in="the documentation of 1.4.0rc1",
    methods=_methods(
        _BASE_14, eagle=_EAGLE_14, mtp=_MTP_RC27, draft_target="Draft_Target", more=_LATE_14
    ),
    fixes={**_P13_RC27.fixes, "eagle_choices": "gone; use_dynamic_tree grows a tree by itself"},
)
_P14_RC4 = replace(
    _P14,
    name="1.4",
    since=(1, 4, 0, 4),
    read_in="the documentation of 1.4.0rc4",
    methods=_methods(
        _BASE_14_RC4, eagle=_EAGLE_14_RC4, mtp=_MTP_14_RC4, draft_target="Draft_Target",
        more={
            **_LATE_14,
            "eagle3": _own_class("Eagle3", _EAGLE_14_RC4),
            "dspark": _own_class("DSpark", _DSPARK_14_RC4),
        },
    ),
    fixes={**_P14.fixes, "num_eagle_layers": "gone: it always equalled max_draft_len; remove it"},
)  # fmt: skip

PROFILES = (
    _P10, _P11, _P12_PREVIEW, _P12, _P13, _P13_LATE, _P13_RC27, _P14, _P14_RC4,
)  # fmt: skip
OLDEST: Version = PROFILES[0].since
# The releases in the support matrix and in the golden files, one or more for each profile.
RELEASES = (
    "1.0.0", "1.1.0", "1.2.0rc2", "1.2.1", "1.3.0rc1", "1.3.0rc24", "1.3.0rc27", "1.4.0rc1",
    "1.4.0rc4",
)  # fmt: skip
NEWEST_READ: Version = (1, 4, FINAL, FINAL)


def profile(text: str) -> Profile:
    """The rules of a release; of one that is newer than all we know, the newest rules."""
    number = version(text)
    if number is None:
        raise InputError(f"tensorrt_llm: {text!r} is not a release, like 1.2.1 or 1.3.0rc27")
    if number < OLDEST:
        raise InputError(
            f"tensorrt_llm: backend 'pytorch' needs TensorRT-LLM 1.0 or newer, the recipe says "
            f"{text}; backend: tensorrt builds engines for it"
        )
    return next(entry for entry in reversed(PROFILES) if entry.since <= number)


def newer_than_known(text: str) -> bool:
    """Whether no table was read for a release, so that only the probe can tell."""
    number = version(text)
    return number is not None and number > NEWEST_READ
