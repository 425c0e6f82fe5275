"""Every parameter that Triton's `tensorrtllm` backend reads, with the release that brought it.

Read in the templates of the backend's releases 0.16 to 0.19, its last version of May 2025 (0.20)
and TensorRT-LLM's own tree after that. The backend ignores a name that it does not know, and takes
a value that is "" or still `${...}` for unset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toolkit.errors import did_you_mean
from toolkit.recipe.release import Release

WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
MODES = (
    "top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle",
)  # fmt: skip
BATCHING = ("V1", "v1", "inflight_batching", "inflight_fused_batching")
GUIDED: Release = (0, 19)  # requests may bring grammars


@dataclass(frozen=True, slots=True)
class TritonParameter:
    """`kind` as in serving/contract.py; `field`: where a recipe says it, if it has a place."""

    kind: str = "text"
    since: Release = (0, 16)
    required: bool = False
    field: str | None = None


_SERVE = "serve.tensorrt"
PARAMETERS: Mapping[str, TritonParameter] = {
    "gpt_model_path": TritonParameter("path", required=True, field="the engine itself"),
    "gpt_model_type": TritonParameter(
        f"one of {'|'.join(BATCHING)}", required=True, field=f"{_SERVE}.batching_strategy"
    ),
    "max_beam_width": TritonParameter("number"),
    "decoding_mode": TritonParameter(f"one of {'|'.join(MODES)}", field="speculation.drafter"),
    "medusa_choices": TritonParameter(field="speculation.medusa_choices"),
    "eagle_choices": TritonParameter(field="speculation.eagle_choices"),
    **{
        f"lookahead_{name}": TritonParameter("number", (0, 19), field=f"speculation.max_{name}")
        for name in ("window_size", "ngram_size", "verification_set_size")
    },
    "speculative_decoding_fast_logits": TritonParameter("flag", field=f"{_SERVE}.fast_logits"),
    "kv_cache_free_gpu_mem_fraction": TritonParameter(
        "fraction", field=f"{_SERVE}.target.kv_cache_free_gpu_mem_fraction"
    ),
    "max_tokens_in_paged_kv_cache": TritonParameter(
        "number", field=f"{_SERVE}.target.max_tokens_in_paged_kv_cache"
    ),
    "max_attention_window_size": TritonParameter(
        "numbers", field=f"{_SERVE}.target.max_attention_window_size"
    ),
    "enable_kv_cache_reuse": TritonParameter("flag", field=f"{_SERVE}.enable_kv_cache_reuse"),
    "kv_cache_host_memory_bytes": TritonParameter(
        "count", field=f"{_SERVE}.kv_cache_host_memory_bytes"
    ),
    "enable_chunked_context": TritonParameter("flag", field=f"{_SERVE}.enable_chunked_context"),
    "batch_scheduler_policy": TritonParameter(
        "one of max_utilization|guaranteed_no_evict", field=f"{_SERVE}.batch_scheduler_policy"
    ),
    "gpu_device_ids": TritonParameter("groups", field=f"{_SERVE}.target.gpus"),
    "participant_ids": TritonParameter("groups", field=f"{_SERVE}.processes"),
    "exclude_input_in_output": TritonParameter("flag", field=f"{_SERVE}.exclude_input_in_output"),
    "cancellation_check_period_ms": TritonParameter(
        "number", field=f"{_SERVE}.cancellation_check_period_ms"
    ),
    "stats_check_period_ms": TritonParameter("number", field=f"{_SERVE}.stats_check_period_ms"),
    "executor_worker_path": TritonParameter(field="the backend's own place"),
    "FORCE_CPU_ONLY_INPUT_TENSORS": TritonParameter(field="always no"),
    "sink_token_length": TritonParameter("count"),
    "cross_kv_cache_fraction": TritonParameter("fraction"),
    "kv_cache_onboard_blocks": TritonParameter("flag"),
    "recv_poll_period_ms": TritonParameter("count"),
    "iter_stats_max_iterations": TritonParameter("count"),
    "request_stats_max_iterations": TritonParameter("count"),
    "normalize_log_probs": TritonParameter("flag"),
    "gpu_weights_percent": TritonParameter("fraction"),
    "enable_context_fmha_fp32_acc": TritonParameter("flag"),
    "multi_block_mode": TritonParameter("flag"),
    "cuda_graph_mode": TritonParameter("flag"),
    "cuda_graph_cache_size": TritonParameter("count"),
    "enable_trt_overlap": TritonParameter("flag"),
    "encoder_model_path": TritonParameter("text"),
    "lora_cache_optimal_adapter_size": TritonParameter("number"),
    "lora_cache_max_adapter_size": TritonParameter("number"),
    "lora_cache_gpu_memory_fraction": TritonParameter("fraction"),
    "lora_cache_host_memory_bytes": TritonParameter("count"),
    "lora_prefetch_dir": TritonParameter("text", (0, 19)),
    "num_nodes": TritonParameter("number", (0, 19)),
    "guided_decoding_backend": TritonParameter(
        "one of xgrammar", GUIDED, field=f"{_SERVE}.guided_decoding"
    ),
    "tokenizer_dir": TritonParameter("text", (0, 19)),
    "xgrammar_tokenizer_info_path": TritonParameter("text", (0, 19)),
}


def parameter_problems(given: Mapping[str, str], release: Release) -> Iterator[tuple[str, str]]:
    """(name, what is wrong) for what a recipe may not add by its upstream name."""
    for name in given:
        known = PARAMETERS.get(name)
        if known is None:
            yield (
                name,
                f"the tensorrtllm backend reads no such parameter{did_you_mean(name, PARAMETERS)}",
            )
        elif known.field is not None:
            yield name, f"is said elsewhere: {known.field}"
        elif release < known.since:
            yield name, f"came with TensorRT-LLM {'.'.join(map(str, known.since))}"
