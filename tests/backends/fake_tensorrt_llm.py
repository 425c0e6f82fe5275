"""A `tensorrt_llm` with the PyTorch backend's names only, as strict about arguments as upstream.

Signatures are those of 1.2: unknown keywords are a ValueError from LLM (pydantic's extra="forbid")
and a TypeError from SamplingParams (a dataclass with slots). A text is its UTF-8 bytes, and token n
of an answer reads " n".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
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
    gpus_per_node: int | None = None
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


_PLAIN = {
    "max_tokens": (int,), "top_k": (int,), "seed": (int,), "best_of": (int,), "stop": (str, list),
    "top_p": (int, float), "temperature": (int, float), "presence_penalty": (int, float),
    "frequency_penalty": (int, float), "exclude_input_from_output": (bool,),
    "return_perf_metrics": (bool,), "logprobs": (int,),
}  # fmt: skip


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
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    exclude_input_from_output: bool = True
    logprobs: int | None = None
    return_perf_metrics: bool = False
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True

    def __post_init__(self) -> None:
        self.best_of = self.best_of or self.n
        if self.best_of < self.n:
            raise ValueError(f"best_of ({self.best_of}) cannot be less than n ({self.n})")
        if self.best_of > 1 and self.top_k in (None, 1) and self.top_p in (None, 0.0):
            raise ValueError("Greedy decoding in the LLM API does not allow multiple returns.")
        for name, kinds in _PLAIN.items():  # what the bindings take
            value = getattr(self, name)
            if value is not None and type(value) not in kinds:
                raise TypeError(f"incompatible argument: {name}={value!r} ({type(value).__name__})")
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
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    request_perf_metrics: Any = None
    _last_token_ids_len: int = 0

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._last_token_ids_len :]


class RequestOutput:
    """Iterating waits for the next response and changes this object in place.

    Without streaming the first response is the last.
    """

    def __init__(
        self,
        deployment: FakeDeployment,
        prompt: list[int],
        params: SamplingParams,
        streaming: bool = True,
    ) -> None:
        self._request: FakeRequest = deployment.begin()
        self._responses = deployment.answer(
            self._request,
            prompt,
            params.max_tokens,
            params.stop_token_ids or [],
            params.ignore_eos,
        )
        self._params, self._streaming = params, streaming
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
        self._step()
        while not (self.finished or self._streaming):
            self._step()
        return self

    def _step(self) -> None:
        output = self.outputs[0]
        if self.aborted_by_caller:
            tokens, reason = [], "cancelled"
        else:
            tokens, reason = next(self._responses)
        output._last_token_ids_len = len(output.token_ids)
        output.token_ids.extend(tokens)
        output.finish_reason = reason
        if self._params.detokenize:
            self._detokenize(output)
        if self._params.logprobs:
            output.cumulative_logprob = -0.5 * len(output.token_ids)
        self.decoding_iter = self._request.iterations
        self.finished = output.finish_reason is not None
        if self.finished and self._params.return_perf_metrics:
            output.request_perf_metrics = _perf_metrics(self._request)

    def _detokenize(self, output: CompletionOutput) -> None:
        output.text = "".join(f" {token}" for token in output.token_ids)
        words = [self._params.stop] if isinstance(self._params.stop, str) else self._params.stop
        for word in words or ():
            if word in output.text:
                output.text = output.text[: output.text.find(word)]
                output.finish_reason, output.stop_reason = "stop", word


def _perf_metrics(request: FakeRequest) -> SimpleNamespace:
    """Objects with the bindings' types; the part about drafts only if there were any."""
    told = request.perf_metrics()["perf_metrics"]
    times, cache = told["timing_metrics"], told["kv_cache_metrics"]
    speculation = told.get("speculative_decoding")
    return SimpleNamespace(
        timing_metrics=SimpleNamespace(
            **{name: timedelta(seconds=value) for name, value in times.items()}
        ),
        kv_cache_metrics=SimpleNamespace(**cache, kv_cache_hit_rate=0.25),
        speculative_decoding=SimpleNamespace(**speculation) if speculation else None,
    )


def update_llm_args_with_extra_dict(
    llm_args: dict[str, Any],
    llm_args_dict: dict[str, Any],
    extra_llm_api_options: str | None = None,
) -> dict[str, Any]:
    """Sections become objects of the class that decoding_type names."""
    kinds = {"Eagle": EagleDecodingConfig, "NGram": NGramDecodingConfig}
    merged = llm_args | llm_args_dict
    speculation = merged.get("speculative_config")
    if isinstance(speculation, dict):
        kind = speculation.get("decoding_type")
        if kind not in kinds:
            raise ValueError(f"Invalid decoding type: {kind}")
        merged["speculative_config"] = kinds[kind](**speculation)
    return merged


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
            if isinstance(inputs, str):
                inputs = list(inputs.encode())
            if not isinstance(inputs, list):
                raise TypeError(f"prompts are text or token ids, not {type(inputs).__name__}")
            if len(inputs) > self.args.max_num_tokens:
                raise ValueError(
                    f"The sum of prompt length ({len(inputs)}) and query length (0) should not "
                    f"exceed max_num_tokens ({self.args.max_num_tokens})"
                )
            assert isinstance(sampling_params, SamplingParams)
            return RequestOutput(deployment, inputs, sampling_params, streaming)

        def get_stats(self, timeout: float | None = 2) -> list[dict[str, Any]]:
            found = deployment.take_iterations()
            return found if self.args.enable_iter_perf_stats else []

        def shutdown(self) -> None:
            self.closed = True

    package, llmapi = ModuleType("tensorrt_llm"), ModuleType("tensorrt_llm.llmapi")
    llm_args = ModuleType("tensorrt_llm.llmapi.llm_args")
    llm_utils = ModuleType("tensorrt_llm.llmapi.llm_utils")
    vars(package).update(
        LLM=LLM, SamplingParams=SamplingParams, __version__=version, __path__=[], llmapi=llmapi
    )
    vars(llmapi).update(llm_args=llm_args, llm_utils=llm_utils, __path__=[])
    vars(llm_utils).update(update_llm_args_with_extra_dict=update_llm_args_with_extra_dict)
    for entry in (TorchLlmArgs, EagleDecodingConfig, NGramDecodingConfig):
        setattr(llm_args, entry.__name__, entry)
    return {module.__name__: module for module in (package, llmapi, llm_args, llm_utils)}
