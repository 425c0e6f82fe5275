"""Keys that other tools, or other releases of them, have for what a recipe says."""

from __future__ import annotations

from collections.abc import Mapping

# TensorRT-LLM renamed several of these between releases; all of them are found in guides.
OTHER_WORDS: Mapping[str, str] = {
    "decoding_type": "speculation.drafter",
    "method": "speculation.drafter",
    "speculative_decoding_mode": "speculation.drafter",
    "speculative_model": "speculation.heads.checkpoint, or speculation.draft.checkpoint",
    "speculative_model_dir": "speculation.heads.checkpoint, or speculation.draft.checkpoint",
    "pytorch_weights_path": "speculation.heads.checkpoint",
    "medusa_model_dir": "speculation.heads.checkpoint",
    "eagle_model_dir": "speculation.heads.checkpoint",
    "drafter_model_dir": "speculation.heads.checkpoint",
    "draft_model": "speculation.draft.checkpoint",
    "draft_engine_dir": "speculation.draft.checkpoint",
    "num_draft_tokens": "speculation.max_draft_len",
    "num_speculative_tokens": "speculation.max_draft_len",
    "max_draft_tokens": "speculation.max_draft_len",
    "max_medusa_token_len": "speculation.max_draft_len",
    "prompt_lookup_num_tokens": "speculation.max_draft_len",
    "prompt_lookup_max": "speculation.max_matching_ngram_size",
    "prompt_lookup_min": "speculation.min_matching_ngram_size",
    "suffix_decoding_max_spec_factor": "speculation.max_draft_factor",
    "draft_tp_size": "speculation.draft.parallel.tp",
    "draft_tensor_parallel_size": "speculation.draft.parallel.tp",
    "tensor_parallel_size": "target.parallel.tp",
    "tp_size": "target.parallel.tp",
    "pipeline_parallel_size": "target.parallel.pp",
    "pp_size": "target.parallel.pp",
    "model_dir": "target.checkpoint",
    "max_model_len": "engine.max_seq_len",
    "free_gpu_memory_fraction": "tensorrt.kv_cache_fraction",
    "kv_cache_free_gpu_mem_fraction": "tensorrt.kv_cache_fraction",
    "kv_cache_free_gpu_memory_fraction": "tensorrt.kv_cache_fraction",
}
