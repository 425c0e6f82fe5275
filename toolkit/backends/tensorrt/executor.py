"""One engine in TensorRT-LLM's executor: the door to `tensorrt_llm.bindings.executor`.

The executor rather than ModelRunnerCpp, which drops the iteration counts that acceptance is told
from. Written against the bindings' signatures of 0.16 to 1.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from toolkit.engine.trtllm.directory import TrtEngine
from toolkit.engine.trtllm.failures import explain
from toolkit.engine.trtllm.machine import same_release
from toolkit.errors import InputError, RunError
from toolkit.optional import require
from toolkit.recipe.release import Release, release
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import FinishReason

# A mapping under one of these keys stands for the binding class of that name.
_CLASSES = {
    "lookahead_decoding_config": "LookaheadDecodingConfig",
    "eagle_config": "EagleConfig",
}
_REASONS: Mapping[str, FinishReason] = {
    "END_ID": "stop",
    "STOP_WORDS": "stop",
    "CANCELLED": "cancelled",
}
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Settings:
    """How an engine is loaded."""

    kv_cache_fraction: float  # of the GPU memory that is free once its weights are loaded
    decoding: Mapping[str, Any] | None = None  # of a drafter that runs inside the engine
    block_reuse: bool = False
    generation_logits: bool = False
    orchestrated: bool = False  # ranks are processes of their own, started by the executor
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Draft:
    """Tokens for the target to verify, with the draft's logits when they decide."""

    tokens: list[int]
    logits: Any | None = None  # torch tensor [len(tokens), V]


@dataclass(frozen=True)
class Answer:
    """New tokens of one request."""

    request: int
    tokens: list[int]
    iterations: int  # that the engine has spent on this request so far
    reason: FinishReason | None  # None: more will come
    logits: Any | None = None  # torch tensor [len(tokens), V], where asked for
    counts: tuple[int, int] | None = None  # (accepted, drafted) of the whole request, by 1.x


class EngineExecutor:
    """Requests go in, answers come out in whatever order the engine makes them."""

    def __init__(self, engine: TrtEngine, settings: Settings) -> None:
        package = require("tensorrt_llm", extra="tensorrt", why="backend 'tensorrt'")
        if not same_release(engine.version, package.__version__):
            raise InputError(
                f"{engine.directory}: built by TensorRT-LLM {engine.version}, this is "
                f"{package.__version__}; build it again here: spectool build RECIPE"
            )
        self._api = require(
            "tensorrt_llm.bindings.executor", extra="tensorrt", why="backend 'tensorrt'"
        )
        self._engine, self._settings = engine, settings
        self._release = release(engine.version) or (0, 0)
        self._arrived: list[Answer] = []
        worker = Path(str(package.__file__)).parent / "bin" / "executorWorker"
        config = _executor_config(self._api, self._release, engine, settings, worker)
        try:
            self._executor = self._api.Executor(
                engine.directory, self._api.ModelType.DECODER_ONLY, config
            )
        except RuntimeError as error:
            raise _failed(str(engine.directory), error) from None

    @property
    def max_batch_size(self) -> int:
        return int(self._engine.build["max_batch_size"])

    @property
    def max_draft_len(self) -> int:
        return self._engine.max_draft_len

    @property
    def max_seq_len(self) -> int:
        """Prompt and output together; the engine's own number has room for drafts as well."""
        room = self._engine.max_draft_len if self._engine.mode else 0
        if self._engine.mode == "eagle":
            room += int(self._engine.pretrained.get("num_eagle_layers", 0))
        return int(self._engine.build["max_seq_len"]) - room

    @property
    def vocab_size(self) -> int:
        return int(self._engine.pretrained["vocab_size"])

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams,
        *,
        stop_tokens: frozenset[int] = frozenset(),
        streaming: bool = False,
        draft: Draft | None = None,
    ) -> int:
        """Enqueue one request; its id is on every answer to it."""
        api, first = self._api, min(stop_tokens, default=None)
        output = api.OutputConfig(
            exclude_input_from_output=True,
            return_generation_logits=self._settings.generation_logits,
            return_perf_metrics=True,
        )
        words = {
            "streaming": streaming,
            "sampling_config": _sampling(api, sampling, len(prompt)),
            "output_config": output,
            "end_id": first,
        }
        if len(stop_tokens) > 1:
            words["stop_words"] = [[token] for token in sorted(stop_tokens - {first})]
        if draft is not None:
            words["external_draft_tokens_config"] = _external(api, draft)
        return int(self._executor.enqueue_request(api.Request(list(prompt), max_tokens, **words)))

    def wait(self) -> list[Answer]:
        """The next answers, at least one and at most one of each request: a step as loops count
        them. RunError when the engine fails or is silent.
        """
        if not self._arrived:
            timeout = timedelta(seconds=self._settings.timeout_s)
            responses = self._executor.await_responses(timeout)
            self._arrived = [self._answer(response) for response in responses]
        if not self._arrived:
            raise RunError(f"{self._engine.directory}: no answer in {self._settings.timeout_s:g} s")
        step: dict[int, Answer] = {}
        later = [a for a in self._arrived if step.setdefault(a.request, a) is not a]
        self._arrived = later
        return list(step.values())

    def cancel(self, request: int) -> None:
        self._executor.cancel_request(request)

    def close(self) -> None:
        """Free the GPU memory."""
        self._executor.shutdown()

    def _answer(self, response: Any) -> Answer:
        if response.has_error():
            raise _failed(str(self._engine.directory), response.error_msg)
        result = response.result
        tokens = list(result.output_token_ids[0])
        reason: FinishReason | None = None
        if result.is_final:
            reason = _REASONS.get(result.finish_reasons[0].name, "length")
        logits = result.generation_logits
        return Answer(
            request=response.request_id,
            tokens=tokens,
            iterations=int(result.decoding_iter),
            reason=reason,
            logits=None if logits is None else logits[0, : len(tokens)],  # beam 0
            counts=_counts(result, self._release) if reason else None,
        )


def _executor_config(
    api: ModuleType, number: Release, engine: TrtEngine, settings: Settings, worker: Path
) -> Any:
    words: dict[str, Any] = {
        "max_beam_width": 1,
        "kv_cache_config": api.KvCacheConfig(
            enable_block_reuse=settings.block_reuse,
            free_gpu_memory_fraction=settings.kv_cache_fraction,
        ),
        "parallel_config": _parallel(api, engine, settings, worker),
    }
    if settings.decoding is not None:
        words["decoding_config"] = _decoding(api, settings.decoding)
        # Tree attention has no multi-block kernels.
        words["extended_runtime_perf_knob_config"] = api.ExtendedRuntimePerfKnobConfig(
            multi_block_mode=False
        )
    if settings.generation_logits and number > (0, 16):  # before, the build flag decided alone
        words["gather_generation_logits"] = True
    return api.ExecutorConfig(**words)


def _parallel(api: ModuleType, engine: TrtEngine, settings: Settings, worker: Path) -> Any:
    devices = list(range(engine.world_size))
    if not settings.orchestrated:
        return api.ParallelConfig(
            api.CommunicationType.MPI, api.CommunicationMode.LEADER, device_ids=devices
        )
    return api.ParallelConfig(
        api.CommunicationType.MPI,
        api.CommunicationMode.ORCHESTRATOR,
        device_ids=devices,
        orchestrator_config=api.OrchestratorConfig(True, str(worker)),
    )


def _decoding(api: ModuleType, decoding: Mapping[str, Any]) -> Any:
    return api.DecodingConfig(
        **{
            key: getattr(api, _CLASSES[key])(**value) if key in _CLASSES else value
            for key, value in decoding.items()
        }
    )


def _sampling(api: ModuleType, sampling: SamplingParams, position: int) -> Any:
    """Greedy is top-k 1: without limits the executor would be greedy at any temperature.

    Each request draws from the start of its seed, so the seed moves on with the position: a text
    that is made of many requests must not see the same chance again and again.
    """
    if sampling.greedy:
        return api.SamplingConfig(beam_width=1, top_k=1)
    words: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": (sampling.seed * 0x9E3779B97F4A7C15 + position) & _MAX_SEED,
    }
    if sampling.top_k:
        words["top_k"] = sampling.top_k
    return api.SamplingConfig(beam_width=1, **words)


def _external(api: ModuleType, draft: Draft) -> Any:
    if draft.logits is None:
        return api.ExternalDraftTokensConfig(draft.tokens)
    return api.ExternalDraftTokensConfig(draft.tokens, draft.logits)


def _counts(result: Any, number: Release) -> tuple[int, int] | None:
    """What the engine itself counted, from 1.0 on."""
    metrics = result.request_perf_metrics
    if number < (1, 0) or metrics is None:
        return None
    found = metrics.speculative_decoding
    return int(found.total_accepted_draft_tokens), int(found.total_draft_tokens)


def _failed(where: str, error: object) -> RunError:
    first = str(error).strip().splitlines()[:1] or ["no message"]
    cause = explain(str(error).splitlines())
    return RunError(f"{where}: {cause}\n  {first[0]}" if cause else f"{where}: {first[0]}")
