"""A `tensorrt_llm` with the PyTorch backend's names only, as strict about arguments as upstream.

Signatures are those of 1.2: unknown keywords are a ValueError from LLM (pydantic's extra="forbid")
and a TypeError from SamplingParams (a dataclass with slots).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from tests.backends.fake_deployment import FakeDeployment, FakeRequest


class Strict(BaseModel):
    """Upstream's StrictBaseModel."""

    model_config = ConfigDict(extra="forbid")


class EagleDecodingConfig(Strict):
    decoding_type: Literal["Eagle"] = "Eagle"
    max_draft_len: int | None = None
    max_concurrency: int | None = None
    speculative_model_dir: str | None = None
    eagle3_one_model: bool | None = True
    eagle3_layers_to_capture: set[int] | None = None
    allow_advanced_sampling: bool = False


class NGramDecodingConfig(Strict):
    decoding_type: Literal["NGram"] = "NGram"
    max_draft_len: int | None = None
    max_concurrency: int | None = None
    max_matching_ngram_size: int = 0
    is_keep_all: bool = True
    is_use_oldest: bool = True
    is_public_pool: bool = True


class TorchLlmArgs(Strict):
    """What LLM takes besides the model's name and tokenizer."""

    dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    max_batch_size: int | None = None
    max_num_tokens: int | None = 8192
    max_seq_len: int | None = None
    max_input_len: int | None = 1024
    max_beam_width: int | None = None
    kv_cache_config: dict[str, Any] | None = None
    cuda_graph_config: dict[str, Any] | None = None
    disable_overlap_scheduler: bool = False
    enable_chunked_prefill: bool = False
    guided_decoding_backend: str | None = None
    attn_backend: str = "TRTLLM"
    stream_interval: int = 1
    enable_iter_perf_stats: bool = False
    return_perf_metrics: bool = False
    perf_metrics_max_requests: int = 0
    speculative_config: EagleDecodingConfig | NGramDecodingConfig | None = Field(
        default=None, discriminator="decoding_type"
    )


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """The fields of the real one that can be set for text."""

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: Any = None
    bad_token_ids: list[int] | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    logprobs: int | None = None
    return_perf_metrics: bool = False
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True

    def __post_init__(self) -> None:
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"require top_k >= 0, got top_k={self.top_k}")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"require temperature >= 0, got temperature={self.temperature}")


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    request_perf_metrics: Any = None
    _last_token_ids_len: int = 0

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._last_token_ids_len :]


class RequestOutput:
    """Iterating waits for the next response and changes this object in place."""

    def __init__(
        self, deployment: FakeDeployment, prompt: list[int], params: SamplingParams
    ) -> None:
        self._request: FakeRequest = deployment.begin()
        self._responses = deployment.answer(
            self._request,
            prompt,
            params.max_tokens,
            params.stop_token_ids or [],
            params.ignore_eos,
        )
        self._params = params
        self.prompt_token_ids = prompt
        self.outputs = [CompletionOutput(0)]
        self.decoding_iter = 0
        self.finished = False
        self.aborted_by_caller = False

    @property
    def request_id(self) -> int:
        return self._request.request_id

    def abort(self) -> None:
        self.aborted_by_caller = True

    def __iter__(self) -> Iterator[RequestOutput]:
        return self

    def __next__(self) -> RequestOutput:
        if self.finished:
            raise StopIteration
        output = self.outputs[0]
        if self.aborted_by_caller:
            tokens, reason = [], "cancelled"
        else:
            tokens, reason = next(self._responses)
        output._last_token_ids_len = len(output.token_ids)
        output.token_ids.extend(tokens)
        output.finish_reason = reason
        self.decoding_iter = self._request.iterations
        self.finished = reason is not None
        if self.finished and self._params.return_perf_metrics:
            output.request_perf_metrics = SimpleNamespace(
                speculative_decoding=SimpleNamespace(
                    total_draft_tokens=self._request.drafted,
                    total_accepted_draft_tokens=self._request.accepted,
                    acceptance_rate=self._request.accepted / max(self._request.drafted, 1),
                )
            )
        return self


def make_modules(
    deployment: FakeDeployment, *, failure: Exception | None = None, version: str = "1.2.1"
) -> dict[str, ModuleType]:
    """`tensorrt_llm` and what lies below it; `failure` strikes when a model is loaded."""

    class LLM:
        loaded: ClassVar[list[LLM]] = []  # what tests look at

        def __init__(
            self,
            model: str,
            tokenizer: Any = None,
            tokenizer_mode: str = "auto",
            skip_tokenizer_init: bool = False,
            trust_remote_code: bool = False,
            tensor_parallel_size: int = 1,
            dtype: str = "auto",
            revision: str | None = None,
            tokenizer_revision: str | None = None,
            **kwargs: Any,
        ) -> None:
            if failure:
                raise failure
            self.args = TorchLlmArgs(
                tensor_parallel_size=tensor_parallel_size, dtype=dtype, **kwargs
            )
            self.model, self.revision, self.closed = model, revision, False
            deployment.merge = self.args.stream_interval
            LLM.loaded.append(self)

        def generate_async(
            self,
            inputs: Any,
            sampling_params: SamplingParams | None = None,
            lora_request: Any = None,
            prompt_adapter_request: Any = None,
            streaming: bool = False,
            kv_cache_retention_config: Any = None,
            disaggregated_params: Any = None,
            _postproc_params: Any = None,
            scheduling_params: Any = None,
            cache_salt: str | None = None,
        ) -> RequestOutput:
            if self.closed:
                raise RuntimeError("LLM is shutting down")
            if not isinstance(inputs, list) or not streaming:
                raise TypeError("this fake takes token ids and streams")
            if len(inputs) > self.args.max_num_tokens:
                raise ValueError(
                    f"The sum of prompt length ({len(inputs)}) and query length (0) should not "
                    f"exceed max_num_tokens ({self.args.max_num_tokens})"
                )
            assert isinstance(sampling_params, SamplingParams)
            return RequestOutput(deployment, inputs, sampling_params)

        def get_stats(self, timeout: float | None = 2) -> list[dict[str, Any]]:
            found = deployment.take_iterations()
            return found if self.args.enable_iter_perf_stats else []

        def shutdown(self) -> None:
            self.closed = True

    package, llmapi = ModuleType("tensorrt_llm"), ModuleType("tensorrt_llm.llmapi")
    llm_args = ModuleType("tensorrt_llm.llmapi.llm_args")
    vars(package).update(
        LLM=LLM, SamplingParams=SamplingParams, __version__=version, __path__=[], llmapi=llmapi
    )
    vars(llmapi).update(llm_args=llm_args, __path__=[])
    for entry in (TorchLlmArgs, EagleDecodingConfig, NGramDecodingConfig):
        setattr(llm_args, entry.__name__, entry)
    return {module.__name__: module for module in (package, llmapi, llm_args)}
