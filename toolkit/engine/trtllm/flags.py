"""Every flag of trtllm-build by release, as data: name, kind, choices, default.

`0.16` is what the real parser of 0.16.0.dev2024121000 said when it was run. `1.2` was read in its
source, not run. `0.20` and `1.0` were read in a source tree that holds 0.20.0 and 1.1.0rc6 merged:
1.2's flags and defaults, with the automatic parallelism that 1.2 removed. Releases between share a
table: 0.17 to 0.21 use `0.20`, 1.0 and 1.1 use `1.0`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from toolkit.errors import did_you_mean
from toolkit.recipe.release import Release

FlagValue = str | int | bool
Kind = Literal["int", "str", "on", "choice"]  # `on` takes no value

_PLUGIN = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
_GEMM = (*_PLUGIN[:-1], "fp8", "disable")
_FP8 = ("fp8", "disable")
_SWITCH = ("enable", "disable")
_MODES = (
    "draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle",
)  # fmt: skip
_LORA = (
    "attn_qkv", "attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_4h_to_h",
    "mlp_gate", "cross_attn_qkv", "cross_attn_q", "cross_attn_k", "cross_attn_v",
    "cross_attn_dense", "moe_h_to_4h", "moe_4h_to_h", "moe_gate", "moe_router", "mlp_router",
)  # fmt: skip
_CLUSTERS = (
    "A100-SXM-80GB", "A100-SXM-40GB", "A100-PCIe-80GB", "A100-PCIe-40GB", "H100-SXM", "H100-PCIe",
    "H20", "V100-PCIe-16GB", "V100-PCIe-32GB", "V100-SXM-16GB", "V100-SXM-32GB", "V100S-PCIe",
    "A40", "A30", "A10", "A10G", "L40S", "L40", "L20", "L4", "L2",
)  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """One flag: `--name`, or one of its aliases."""

    kind: Kind
    default: FlagValue | None = None  # None: upstream decides while building
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


def _switch(default: str) -> Flag:
    return Flag("choice", default, _SWITCH)


_0_16: dict[str, Flag] = {
    **dict.fromkeys(
        ("checkpoint_dir", "model_config", "build_config", "model_cls_file", "model_cls_name"),
        Flag("str"),
    ),
    "output_dir": Flag("str", "engine_outputs"),
    "max_batch_size": Flag("int", 2048),
    "max_input_len": Flag("int", 1024),
    "max_seq_len": Flag("int", aliases=("max_decoder_seq_len",)),
    "max_beam_width": Flag("int", 1),
    "max_num_tokens": Flag("int", 8192),
    "opt_num_tokens": Flag("int"),
    "max_encoder_input_len": Flag("int", 1024),
    "max_prompt_embedding_table_size": Flag("int", 0, aliases=("max_multimodal_len",)),
    "kv_cache_type": Flag("choice", None, ("continuous", "paged", "disabled")),
    "paged_kv_cache": Flag("str"),
    "input_timing_cache": Flag("str"),
    "output_timing_cache": Flag("str", "model.cache"),
    "profiling_verbosity": Flag(
        "choice", "layer_names_only", ("layer_names_only", "detailed", "none")
    ),
    **dict.fromkeys(
        ("strip_plan", "weight_sparsity", "weight_streaming", "fast_build"), Flag("on", False)
    ),
    "workers": Flag("int", 1),
    "log_level": Flag(
        "choice", "info", ("internal_error", "error", "warning", "info", "verbose", "debug")
    ),
    **dict.fromkeys(
        ("enable_debug_output", "visualize_network", "dry_run", "monitor_memory"),
        Flag("on", False),
    ),
    "logits_dtype": Flag("choice", None, ("float16", "float32")),
    **dict.fromkeys(
        ("gather_context_logits", "gather_generation_logits", "gather_all_token_logits"),
        Flag("on", False),
    ),
    "lora_dir": Flag("str"),
    "lora_ckpt_source": Flag("choice", "hf", ("hf", "nemo")),
    "lora_target_modules": Flag("choice", None, _LORA),
    "max_lora_rank": Flag("int", 64),
    "speculative_decoding_mode": Flag("choice", None, _MODES),
    "max_draft_len": Flag("int", 0),
    "auto_parallel": Flag("int", 1),
    "gpus_per_node": Flag("int", 8),
    "cluster_key": Flag("choice", None, _CLUSTERS),
    "bert_attention_plugin": Flag("choice", "auto", _PLUGIN),
    "gpt_attention_plugin": Flag("choice", "auto", _PLUGIN),
    "gemm_plugin": Flag("choice", "disable", _GEMM),
    "gemm_swiglu_plugin": Flag("choice", "disable", _FP8),
    "fp8_rowwise_gemm_plugin": Flag("choice", "disable", _PLUGIN),
    "nccl_plugin": Flag("choice", "auto", _PLUGIN),
    "lora_plugin": Flag("choice", "disable", _PLUGIN),
    "moe_plugin": Flag("choice", "auto", _PLUGIN),
    "mamba_conv1d_plugin": Flag("choice", "auto", _PLUGIN),
    "low_latency_gemm_plugin": Flag("choice", "disable", _FP8),
    "low_latency_gemm_swiglu_plugin": Flag("choice", "disable", _FP8),
    "context_fmha": _switch("enable"),
    "bert_context_fmha_fp32_acc": _switch("disable"),
    "remove_input_padding": _switch("enable"),
    "reduce_fusion": _switch("disable"),
    "user_buffer": _switch("disable"),
    "tokens_per_block": Flag("int", 64),
    "use_paged_context_fmha": _switch("disable"),
    "use_fp8_context_fmha": _switch("disable"),
    "multiple_profiles": _switch("disable"),
    "paged_state": _switch("enable"),
    "streamingllm": _switch("disable"),
    "use_fused_mlp": _switch("enable"),
    "pp_reduce_scatter": _switch("disable"),
}
_CHANGED_BY_0_20: dict[str, Flag] = {
    "visualize_network": Flag("str"),
    "gemm_plugin": Flag("choice", None, (*_GEMM[:-1], "nvfp4", "disable")),
    "tokens_per_block": Flag("int", 32),
    "use_paged_context_fmha": _switch("enable"),
    "use_fp8_context_fmha": _switch("enable"),
    "dora_plugin": _switch("disable"),
    "gemm_allreduce_plugin": Flag("choice", "disable", ("float16", "bfloat16", "disable")),
    "fuse_fp4_quant": _switch("disable"),
    "norm_quant_fusion": _switch("disable"),
}
_GONE_IN_1_2 = ("auto_parallel", "gpus_per_node", "cluster_key")

_0_20 = _0_16 | _CHANGED_BY_0_20
TABLES: Mapping[str, Mapping[str, Flag]] = {
    "0.16": _0_16,
    "0.20": _0_20,
    "1.0": _0_20,
    "1.2": {name: flag for name, flag in _0_20.items() if name not in _GONE_IN_1_2},
}
OLDEST: Release = (0, 16)
NEWEST: Release = (1, 2)
# Spellings from before 0.16 and their successors.
FORMER = {
    "max_output_len": "set engine.max_seq_len: prompt plus output",
    "timing_cache": "now input_timing_cache and output_timing_cache, kept in the store",
    "strongly_typed": "always on since 0.16; remove it",
    "builder_opt": "removed; leave it out",
    "weight_only_precision": "set target.quantization: w8a16 or w4a16",
}


def table(release: Release) -> Mapping[str, Flag]:
    """The flags of a supported release."""
    return TABLES[table_name(release)]


def table_name(release: Release) -> str:
    """Which of the tables a supported release uses."""
    if release == (0, 16):
        return "0.16"
    if release < (1, 0):
        return "0.20"
    return "1.0" if release < (1, 2) else "1.2"


def release_problem(release: Release | None, text: str) -> str | None:
    """Why engines cannot be built for this release; None when they can."""
    if release is None:
        return f"{text!r} is not a release number like 1.2.1"
    if release < OLDEST:
        return f"{text}: engines are supported from TensorRT-LLM 0.16 to 1.2; set 0.16.0 or newer"
    if release > NEWEST:
        return (
            f"{text}: the engine flow ended with TensorRT-LLM 1.2; set tensorrt_llm to 1.2.1, or "
            "use backend: pytorch"
        )
    return None


def flag_problems(flags: Mapping[str, object], release: Release) -> Iterator[tuple[str, str]]:
    """(name, what is wrong) for every flag or value that the release's parser would refuse."""
    known = table(release)
    for name, value in flags.items():
        if (flag := known.get(name)) is None:
            yield name, _unknown(name, release)
        elif wrong := _wrong_value(flag, value):
            yield name, wrong


def _unknown(name: str, release: Release) -> str:
    number = ".".join(map(str, release))
    if name.startswith("-"):
        return f"write it without dashes: {name.lstrip('-')}"
    if name in FORMER:
        return f"trtllm-build {number} has no --{name}: {FORMER[name]}"
    here = table(release)
    for other, flag in here.items():
        if name in flag.aliases:
            return f"write it as {other}"
    if elsewhere := [version for version, flags in TABLES.items() if name in flags]:
        return f"trtllm-build {number} has no --{name}; known in {', '.join(elsewhere)}"
    return f"trtllm-build {number} has no --{name}{did_you_mean(name, here)}"


def _wrong_value(flag: Flag, value: object) -> str | None:
    if flag.kind == "on":
        wrong, allowed = not isinstance(value, bool), "true or false"
    elif flag.kind == "int":
        wrong, allowed = not isinstance(value, int) or isinstance(value, bool), "a whole number"
    elif flag.kind == "choice":
        wrong, allowed = value not in flag.choices, f"one of {', '.join(flag.choices)}"
    else:
        wrong, allowed = not isinstance(value, str) or not value, "text"
    return f"{value!r}; expected {allowed}" if wrong else None


def with_default(flags: Mapping[str, FlagValue], name: str, release: Release) -> FlagValue | None:
    """The value a flag has in effect."""
    flag = table(release).get(name)
    return flags.get(name, flag.default if flag else None)
