"""The recipe's `serve:` section: the model repository, and the server in front of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from toolkit.recipe.section import Section


class EngineServing(Section):
    """How Triton runs one engine."""

    gpus: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, min_length=1, description="The GPU of each rank; null: by serve.tensorrt.placement."
    )
    kv_cache_free_gpu_mem_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Of the memory that is free when this engine loads; null: its share of "
        "tensorrt.kv_cache_fraction.",
    )
    max_tokens_in_paged_kv_cache: int | None = Field(
        None,
        ge=1,
        description="null: as the fraction gives; where engines share a GPU, a full batch.",
    )
    max_attention_window_size: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, min_length=1, description="Per layer, repeated; null: the whole text."
    )


class TritonTensorRT(Section):
    """Backend `tensorrt` only: how Triton's tensorrtllm backend runs the engines."""

    placement: Literal["shared", "separate"] = Field(
        "shared", description="A draft on the target's first GPUs, or on GPUs of its own."
    )
    processes: Literal["leader", "spawn", "participants"] | None = Field(
        None,
        description="leader: MPI ranks of one engine; spawn: Triton starts a worker per rank; "
        "participants: MPI does. null: leader for one engine, spawn for two.",
    )
    target: EngineServing = EngineServing()
    draft: EngineServing = EngineServing()
    fast_logits: bool = Field(
        False, description="Draft logits go from GPU to GPU; needs processes: participants."
    )
    batching_strategy: Literal["inflight_fused_batching", "inflight_batching", "v1"] = (
        "inflight_fused_batching"
    )
    batch_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = (
        "guaranteed_no_evict"
    )
    enable_kv_cache_reuse: bool | None = Field(
        None, description="null: on where drafts come with each request."
    )
    kv_cache_host_memory_bytes: int | None = Field(None, ge=1)
    enable_chunked_context: bool | None = Field(
        None, description="null: on where a whole text may be longer than max_num_tokens."
    )
    decoupled: bool | None = Field(
        None, description="null: on where clients ask the engine itself, which then may stream."
    )
    exclude_input_in_output: bool = True
    max_queue_size: int = Field(0, ge=0, description="Requests that may wait; 0: any number.")
    max_queue_delay_microseconds: int = Field(0, ge=0)
    text_instances: int | None = Field(
        None, ge=1, description="Processes that tokenize; null: engine.max_batch_size, at most 4."
    )
    cancellation_check_period_ms: int = Field(100, ge=1)
    stats_check_period_ms: int = Field(100, ge=1)
    guided_decoding: Literal["xgrammar"] | None = Field(
        None, description="Requests may bring grammars; TensorRT-LLM 0.19 and newer."
    )
    parameters: dict[str, str] = Field(
        default={}, description="More parameters of every engine's model, by upstream's names."
    )
    tritonserver: str = Field(
        "/opt/tritonserver/bin/tritonserver", min_length=1, description="What launch.sh starts."
    )

    def engine(self, role: str) -> EngineServing:
        return self.target if role == "target" else self.draft


class TritonPyTorch(Section):
    """Backend `pytorch` only: how Triton's model runs the LLM API."""

    decoupled: bool = Field(
        True, description="Responses may stream; false: one to a request, and unary gRPC works."
    )
    stream_deltas: bool = Field(
        False,
        description="true: a streamed response has the new text; false: all of it so far, as from "
        "TensorRT-LLM's own model.",
    )
    gpus: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...] | None = Field(
        None,
        min_length=1,
        description="The GPUs of each instance; null: one instance on those that are visible.",
    )
    nodes: int = Field(1, ge=1, description="Machines that share the target's ranks (srun).")
    max_queue_size: int = Field(256, ge=1, description="Requests that may wait; more are refused.")
    cancellation_check_period_ms: int = Field(100, ge=1)
    tritonserver: str = Field(
        "/opt/tritonserver/bin/tritonserver", min_length=1, description="What launch.sh starts."
    )


class Traces(Section):
    """OpenTelemetry traces of requests, sent by Triton itself."""

    url: str = Field(
        pattern=r"^https?://[A-Za-z0-9.:/_-]+$",
        description="OTLP over HTTP, like http://collector:4318/v1/traces.",
    )
    rate: int = Field(1000, ge=1, description="One request in so many is traced.")


class Serve(Section):
    """How the model repository is laid out and where its server listens."""

    layout: Literal["bls", "inprocess"] = Field(
        "inprocess", description="Backend cpu; models of engines follow from their drafter."
    )
    max_queue_size: int = Field(
        256, ge=1, description="Backend cpu: requests that may wait; more are refused."
    )
    kv_cache_mb: int | None = Field(
        None,
        ge=1,
        description="Backend cpu: keys and values of all models; null: half of the memory.",
    )
    reuse_prefixes: bool = Field(
        True, description="Layout inprocess: prompts that begin alike are read once."
    )
    host: str = "127.0.0.1"
    http_port: int = Field(8000, ge=1, le=65535)
    grpc_port: int = Field(8001, ge=1, le=65535)
    metrics_port: int = Field(8002, ge=1, le=65535)
    traces: Traces | None = None
    image: str | None = Field(
        None,
        pattern=r"^[a-z0-9][A-Za-z0-9._:/@-]*$",
        description="What the container is built on; null: NVIDIA's for the release.",
    )
    tensorrt: TritonTensorRT = TritonTensorRT()
    pytorch: TritonPyTorch = TritonPyTorch()
