"""Tensors and files of the `llmapi` model, those of TensorRT-LLM's own (triton_backend/all_models).

Triton's batch dimension is not used: the LLM API batches in flight. Images, LoRA adapters and
logits processors, which later releases of upstream's model take, are not declared: a client that
sends them is refused. Lines as in serving/contract.py.
"""

from __future__ import annotations

from toolkit.serving.contract import Contract, Parameter, tensors

MODEL = "tensorrt_llm"
YAML = "model.yaml"  # beside model.py: what LLM() is called with, and `triton_config`
SECTION = "triton_config"
# Keys of the section -> whether it must be there. Upstream's own model reads the first three.
SETTINGS = {
    "max_batch_size": True,
    "decoupled": True,
    "cancellation_check_period_ms": False,
    "stream_deltas": False,
    "max_queue_size": False,
    "multimodal": False,
}

_SAMPLING = """
    sampling_param_best_of                    INT32[1]    opt
    sampling_param_temperature                FP32[1]     opt
    sampling_param_top_k                      INT32[1]    opt
    sampling_param_top_p                      FP32[1]     opt
    sampling_param_frequency_penalty          FP32[1]     opt
    sampling_param_presence_penalty           FP32[1]     opt
    sampling_param_max_tokens                 INT32[1]    opt
    sampling_param_stop                       STRING[-1]  opt
    sampling_param_seed                       UINT64[1]   opt
    sampling_param_exclude_input_from_output  BOOL[1]     opt
    sampling_param_return_perf_metrics        BOOL[1]     opt
"""
_PERF_OUTPUTS = """
    kv_cache_reused_block        INT32[-1]
    kv_cache_missed_block        INT32[-1]
    kv_cache_alloc_new_blocks    INT32[-1]
    kv_cache_alloc_total_blocks  INT32[-1]
    kv_cache_hit_rate            FP32[-1]
    arrival_time_ns              INT64[1]
    first_scheduled_time_ns      INT64[1]
    first_token_time_ns          INT64[1]
    last_token_time_ns           INT64[1]
    acceptance_rate              FP32[1]
    total_accepted_draft_tokens  INT32[1]
    total_draft_tokens           INT32[1]
"""

_INPUTS = f"""
    text_input                STRING[-1]
    streaming                 BOOL[1]  opt
    {_SAMPLING}
    return_finish_reason      BOOL[1]  opt
    return_stop_reason        BOOL[1]  opt
    return_cumulative_logprob BOOL[1]  opt
    stop                      BOOL[1]  opt
"""
_OUTPUTS = f"""
    text_output         STRING[-1]
    finish_reason       STRING[-1]
    stop_reason         STRING[-1]
    cumulative_logprob  FP32[-1]
    {_PERF_OUTPUTS}
"""
_PARAMETERS = (Parameter("gpu_device_ids", "groups"), Parameter("tensorrt_llm_release", "text"))


def llmapi_contract(*, decoupled: bool) -> Contract:
    """The model that clients ask."""
    return Contract(tensors(_INPUTS), tensors(_OUTPUTS), _PARAMETERS, decoupled=decoupled)
