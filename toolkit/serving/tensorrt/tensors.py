"""Tensors of the models around TensorRT-LLM engines, as tables by release.

`tensorrt_llm` declares everything that the C++ backend of its release takes, so that clients of our
own and others find what they know. The ensemble declares what plain text serving needs of that.
Lines as in serving/contract.py. Releases that are not named differ in nothing from the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.engine.trtllm.triton_parameters import PARAMETERS
from toolkit.recipe.release import Release
from toolkit.serving.contract import Contract, Parameter, Tensor, tensors
from toolkit.serving.ensemble import Step, plain_steps

_EVERY_RELEASE = """
    input_ids                   INT32[-1]     opt  ragged
    encoder_input_features      FP16[-1,-1]   opt  ragged
    encoder_output_lengths      INT32[1]      opt  reshape
    input_lengths               INT32[1]      reshape
    request_output_len          INT32[1]      reshape
    num_return_sequences        INT32[1]      opt  reshape
    draft_input_ids             INT32[-1]     opt  ragged
    decoder_input_ids           INT32[-1]     opt  ragged
    decoder_input_lengths       INT32[1]      opt  reshape
    draft_logits                FP32[-1,-1]   opt  ragged
    draft_acceptance_threshold  FP32[1]       opt  reshape
    end_id                      INT32[1]      opt  reshape
    pad_id                      INT32[1]      opt  reshape
    stop_words_list             INT32[2,-1]   opt  ragged
    bad_words_list              INT32[2,-1]   opt  ragged
    embedding_bias              FP32[-1]      opt  ragged
    beam_width                  INT32[1]      opt  reshape
    temperature                 FP32[1]       opt  reshape
    runtime_top_k               INT32[1]      opt  reshape
    runtime_top_p               FP32[1]       opt  reshape
    runtime_top_p_min           FP32[1]       opt  reshape
    runtime_top_p_decay         FP32[1]       opt  reshape
    runtime_top_p_reset_ids     INT32[1]      opt  reshape
    len_penalty                 FP32[1]       opt  reshape
    early_stopping              BOOL[1]       opt  reshape
    repetition_penalty          FP32[1]       opt  reshape
    beam_search_diversity_rate  FP32[1]       opt  reshape
    presence_penalty            FP32[1]       opt  reshape
    frequency_penalty           FP32[1]       opt  reshape
    return_log_probs            BOOL[1]       opt  reshape
    return_context_logits       BOOL[1]       opt  reshape
    return_generation_logits    BOOL[1]       opt  reshape
    exclude_input_in_output     BOOL[1]       opt  reshape
    stop                        BOOL[1]       opt  reshape
    streaming                   BOOL[1]       opt  reshape
    prompt_embedding_table      FP16[-1,-1]   opt  ragged
    prompt_table_extra_ids      UINT64[-1]    opt  ragged
    prompt_vocab_size           INT32[1]      opt  reshape
    cross_attention_mask        BOOL[-1,-1]   opt  ragged
    lora_task_id                UINT64[1]     opt  reshape
    lora_weights                FP16[-1,-1]   opt  ragged
    lora_config                 INT32[-1,3]   opt  ragged
    context_phase_params        UINT8[-1]     opt  ragged
    skip_cross_attn_blocks      BOOL[1]       opt  ragged
"""
_SINCE_0_17 = """
    retention_token_range_starts        INT32[-1]  opt  ragged
    retention_token_range_ends          INT32[-1]  opt  ragged
    retention_token_range_priorities    INT32[-1]  opt  ragged
    retention_token_range_durations_ms  INT32[-1]  opt  ragged
    retention_decode_priority           INT32[1]   opt  ragged
    retention_decode_duration_ms        INT32[1]   opt  ragged
"""
_SINCE_0_19 = """
    return_perf_metrics              BOOL[1]    opt  reshape
    mrope_rotary_cos_sin             FP32[-1]   opt
    mrope_position_deltas            INT64[1]   opt
    guided_decoding_guide_type       STRING[1]  opt  ragged
    guided_decoding_guide            STRING[1]  opt  ragged
    lookahead_window_size            INT32[1]   opt  ragged
    lookahead_ngram_size             INT32[1]   opt  ragged
    lookahead_verification_set_size  INT32[1]   opt  ragged
"""
_UP_TO_0_18 = "return_kv_cache_reuse_stats BOOL[1] opt reshape"
_UP_TO_0_19 = """
    min_length   INT32[1]   opt  reshape
    random_seed  UINT64[1]  opt  reshape
"""
_SINCE_0_20 = """
    min_tokens  INT32[1]   opt  reshape
    seed        UINT64[1]  opt  reshape
"""
_SINCE_1_0 = """
    return_num_input_tokens   BOOL[1]  opt  reshape
    return_num_output_tokens  BOOL[1]  opt  reshape
"""

_OUTPUTS = """
    output_ids                  INT32[-1,-1]
    sequence_length             INT32[-1]
    cum_log_probs               FP32[-1]
    output_log_probs            FP32[-1,-1]
    context_logits              FP32[-1,-1]
    generation_logits           FP32[-1,-1,-1]
    batch_index                 INT32[1]
    sequence_index              INT32[1]
    context_phase_params        UINT8[-1]
    kv_cache_alloc_new_blocks   INT32[1]
    kv_cache_reused_blocks      INT32[1]
    kv_cache_alloc_total_blocks INT32[1]
"""
_COUNTS = """
    acceptance_rate              FP32[1]
    total_accepted_draft_tokens  INT32[1]
    total_draft_tokens           INT32[1]
"""
_OUTPUTS_SINCE_0_19 = f"""
    arrival_time_ns          INT64[1]
    first_scheduled_time_ns  INT64[1]
    first_token_time_ns      INT64[1]
    last_token_time_ns       INT64[1]
    {_COUNTS}
"""
_OUTPUTS_SINCE_1_0 = """
    num_input_tokens   INT32[1]
    num_output_tokens  INT32[1]
"""
_LOGITS = ("draft_logits", "context_logits", "generation_logits")


@dataclass(frozen=True, slots=True)
class Names:
    """Inputs that were renamed, and what came later."""

    seed: str
    min_tokens: str
    perf_metrics: bool  # return_perf_metrics and the counts that it asks for


def names(release: Release) -> Names:
    renamed = release >= (0, 20)
    return Names(
        seed="seed" if renamed else "random_seed",
        min_tokens="min_tokens" if renamed else "min_length",
        perf_metrics=release >= (0, 19),
    )


def engine_contract(release: Release, *, decoupled: bool = False, logits: str = "FP32") -> Contract:
    """`tensorrt_llm` and `tensorrt_llm_draft`; `logits` is the type that the engine gives them."""
    inputs = _EVERY_RELEASE + (_SINCE_0_20 if release >= (0, 20) else _UP_TO_0_19)
    inputs += _SINCE_0_19 if release >= (0, 19) else _UP_TO_0_18
    inputs += _SINCE_0_17 if release >= (0, 17) else ""
    inputs += _SINCE_1_0 if release >= (1, 0) else ""
    outputs = _OUTPUTS + (_OUTPUTS_SINCE_0_19 if release >= (0, 19) else "")
    outputs += _OUTPUTS_SINCE_1_0 if release >= (1, 0) else ""
    return Contract(
        inputs=_typed(tensors(inputs), logits),
        outputs=_typed(tensors(outputs), logits),
        parameters=tuple(
            Parameter(name, parameter.kind, parameter.required)
            for name, parameter in PARAMETERS.items()
            if parameter.since <= release
        ),
        decoupled=decoupled,
    )


# Ensemble input -> input of `tensorrt_llm`; those with {} are named by the release.
_TO_ENGINE: Mapping[str, str] = {
    "exclude_input_in_output": "exclude_input_in_output",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "temperature": "temperature",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_TEXT = """
    text_input               STRING[1]
    max_tokens               INT32[1]
    stop_words               STRING[-1]  opt
    exclude_input_in_output  BOOL[1]     opt
    end_id                   INT32[1]    opt
    top_k                    INT32[1]    opt
    top_p                    FP32[1]     opt
    temperature              FP32[1]     opt
    repetition_penalty       FP32[1]     opt
    presence_penalty         FP32[1]     opt
    frequency_penalty        FP32[1]     opt
"""


def ensemble_contract(release: Release, *, streams: bool) -> Contract:
    """Text in, text out, in the words of the release's own ensemble."""
    called = names(release)
    inputs = _TEXT + f"{called.seed} UINT64[1] opt\n{called.min_tokens} INT32[1] opt\n"
    inputs += "return_perf_metrics BOOL[1] opt\n" if called.perf_metrics else ""
    inputs += "stream BOOL[1] opt\n" if streams else ""
    outputs = "text_output STRING[-1]" + (_COUNTS if called.perf_metrics else "")
    return Contract(tensors(inputs), tensors(outputs), parameters=(), decoupled=False)


def ensemble_steps(release: Release, *, streams: bool) -> tuple[Step, ...]:
    """preprocessing -> tensorrt_llm -> postprocessing."""
    called = names(release)
    direct = {*_TO_ENGINE, called.seed, called.min_tokens}
    counts = {}
    if called.perf_metrics:
        direct.add("return_perf_metrics")
        counts = {tensor.name: tensor.name for tensor in tensors(_COUNTS)}
    asked = {_TO_ENGINE.get(name, name): name for name in sorted(direct)}
    streaming = {"streaming": "stream"} if streams else {}
    return plain_steps({**asked, **streaming}, counts)


def _typed(found: tuple[Tensor, ...], logits: str) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(t.name, logits, t.dims, t.optional, t.reshape, t.ragged) if t.name in _LOGITS else t
        for t in found
    )
