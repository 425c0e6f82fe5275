"""Which metrics the model that clients ask exports, by layout; a query uses nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.serving import counters as c

_TEXT_MODEL = frozenset({
    c.DRAFTS, c.DRAFT_TOKENS, c.ACCEPTED_TOKENS, c.GENERATION_TOKENS, c.REQUESTS, c.RUNNING,
    c.WAITING,
    *(f"{name}_{part}" for name in c.HISTOGRAMS for part in ("bucket", "sum", "count")),
})  # fmt: skip
# Of every model, by Triton itself.
TRITON = frozenset({"nv_inference_request_success", "nv_inference_request_failure"})
# Of TensorRT-LLM's C++ backend; it counts no drafts.
BACKEND = frozenset({
    "nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_request_metrics",
    "nv_trt_llm_inflight_batcher_metrics",
})  # fmt: skip
EXPORTED: Mapping[str, frozenset[str]] = {
    "inprocess": _TEXT_MODEL | {c.ACCEPTED_PER_POSITION, c.ACTIVE_SEQUENCES} | TRITON,
    "bls": _TEXT_MODEL
    | {c.ACCEPTED_PER_POSITION, c.DRAFT_FAILURES, c.DRAFT_SECONDS, c.VERIFY_SECONDS}
    | TRITON,
    "llmapi": _TEXT_MODEL | {c.ACTIVE_SEQUENCES} | TRITON,
    "ensemble": TRITON,
}


def exported(layout: str, backend: str) -> frozenset[str]:
    """Names of the metrics that a deployment's queries may use."""
    return EXPORTED[layout] | (BACKEND if backend == "tensorrt" else frozenset())


ALL = frozenset().union(*EXPORTED.values()) | BACKEND
