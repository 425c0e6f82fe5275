"""A made-up `tensorrt_llm.bindings.executor`: the names and arguments of one release, no others.

Behind it stands a teacher whose next token follows from the text alone, so that every way to
generate must end in the same text. Engines with drafting inside accept by a fixed pattern; engines
that take drafts from outside verify them against the teacher, and refuse what upstream refuses.
"""

from __future__ import annotations

import enum
import json
from collections import deque
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

VOCAB = 250
PATTERN = (3, 0, 1)  # drafted tokens that stand, iteration by iteration, as far as the path goes
MODES = {1: None, 2: "external", 4: "medusa", 8: "lookahead", 16: "redrafter", 32: "eagle"}


def teacher(tokens: list[int]) -> int:
    """What the target says next."""
    return (tokens[-1] * 7 + len(tokens) * 3 + 1) % VOCAB


def continuation(prompt: list[int], count: int) -> list[int]:
    """What greedy decoding of the target must come to."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(teacher(tokens))
    return tokens[len(prompt) :]


def student(tokens: list[int]) -> int:
    """What the draft says next: wrong where the text's length is a multiple of four."""
    right = teacher(tokens)
    return (right + 1) % VOCAB if len(tokens) % 4 == 0 else right


SIGNATURES: dict[str, tuple[str, ...]] = {
    "KvCacheConfig": (
        "enable_block_reuse", "max_tokens", "max_attention_window", "sink_token_length",
        "free_gpu_memory_fraction", "host_cache_size", "onboard_blocks",
    ),
    "DecodingConfig": (
        "decoding_mode", "lookahead_decoding_config", "medusa_choices", "eagle_config",
    ),
    "LookaheadDecodingConfig": (
        "max_window_size", "max_ngram_size", "max_verification_set_size",
    ),
    "EagleConfig": ("eagle_choices", "greedy_sampling", "posterior_threshold"),
    "ExtendedRuntimePerfKnobConfig": ("multi_block_mode", "enable_context_fmha_fp32_acc"),
    "OrchestratorConfig": (
        "is_orchestrator", "worker_executable_path", "orch_leader_comm", "spawn_processes",
    ),
    "ParallelConfig": (
        "communication_type", "communication_mode", "device_ids", "participant_ids",
        "orchestrator_config",
    ),
    "ExecutorConfig": (
        "max_beam_width", "scheduler_config", "kv_cache_config", "enable_chunked_context",
        "normalize_log_probs", "iter_stats_max_iterations", "request_stats_max_iterations",
        "batching_type", "max_batch_size", "max_num_tokens", "parallel_config",
        "peft_cache_config", "logits_post_processor_config", "decoding_config",
        "gpu_weights_percent", "max_queue_size", "extended_runtime_perf_knob_config",
        "debug_config", "recv_poll_period_ms", "max_seq_idle_microseconds", "spec_dec_config",
    ),
    "SamplingConfig": (
        "beam_width", "top_k", "top_p", "top_p_min", "top_p_reset_ids", "top_p_decay", "seed",
        "temperature", "min_tokens", "beam_search_diversity_rate", "repetition_penalty",
        "presence_penalty", "frequency_penalty", "length_penalty", "early_stopping",
        "no_repeat_ngram_size", "num_return_sequences",
    ),
    "OutputConfig": (
        "return_log_probs", "return_context_logits", "return_generation_logits",
        "exclude_input_from_output", "return_encoder_output", "return_perf_metrics",
    ),
    "ExternalDraftTokensConfig": ("tokens", "logits", "acceptance_threshold", "fast_logits"),
    "Request": (
        "input_token_ids", "max_tokens", "streaming", "sampling_config", "output_config", "end_id",
        "pad_id", "position_ids", "bad_words", "stop_words", "embedding_bias",
        "external_draft_tokens_config", "prompt_tuning_config", "lora_config", "lookahead_config",
        "logits_post_processor_name", "client_id", "return_all_generated_tokens", "priority",
        "eagle_config",
    ),
}  # fmt: skip
SINCE_0_17: dict[str, tuple[str, ...]] = {"ExecutorConfig": ("gather_generation_logits",)}
SINCE_1_0: dict[str, tuple[str, ...]] = {
    "EagleConfig": ("use_dynamic_tree", "dynamic_tree_max_topK"),
    "ParallelConfig": ("num_nodes",),
    "ExecutorConfig": ("enable_trt_overlap",),
    "SamplingConfig": ("min_p", "beam_width_array"),
    "Request": ("guided_decoding_params", "allotted_time_ms"),
}
POSITIONAL = {"SamplingConfig": 1, "Request": 2}  # the rest by keyword only


class FakeBindings:
    """Install with `modules()`; `executors` are those that were made, newest last."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.new = not version.startswith("0.")
        self.gathers = not version.startswith("0.16")
        self.executors: list[FakeExecutor] = []
        self.fail_loading: str | None = None  # role's directory name
        self.fail_request: str | None = None
        self.silent = False
        self.iterations_per_wait = 1  # how far the engine gets before its answers are read

    def modules(self) -> dict[str, ModuleType]:
        package, bindings = ModuleType("tensorrt_llm"), ModuleType("tensorrt_llm.bindings")
        executor = ModuleType("tensorrt_llm.bindings.executor")
        package.__version__ = self.version
        package.__file__ = "/site/tensorrt_llm/__init__.py"
        package.bindings, bindings.executor = bindings, executor
        for name, arguments in SIGNATURES.items():
            allowed = arguments + (SINCE_0_17.get(name, ()) if self.gathers else ())
            allowed += SINCE_1_0.get(name, ()) if self.new else ()
            setattr(executor, name, _class(name, allowed))
        executor.ModelType = enum.Enum("ModelType", "DECODER_ONLY ENCODER_ONLY")
        executor.CommunicationType = enum.Enum("CommunicationType", "MPI")
        executor.CommunicationMode = enum.Enum("CommunicationMode", "LEADER ORCHESTRATOR")
        executor.Executor = self._executor
        return {module.__name__: module for module in (package, bindings, executor)}

    def _executor(self, path: Path, kind: Any, config: Any) -> FakeExecutor:
        if not isinstance(path, Path) or kind.name != "DECODER_ONLY":
            raise TypeError("incompatible constructor arguments")
        if path.name == self.fail_loading:
            raise RuntimeError(
                "The engine plan file is generated on an incompatible device, expecting compute "
                "8.0 got compute 9.0, please rebuild."
            )
        made = FakeExecutor(self, path, config)
        self.executors.append(made)
        return made


def _class(name: str, allowed: tuple[str, ...]) -> type:
    """Arguments become attributes; an unknown one, or one too many by position, is an error."""

    def construct(self: Any, *values: Any, **words: Any) -> None:
        if len(values) > POSITIONAL.get(name, len(allowed)):
            raise TypeError(f"{name}: too many positional arguments")
        given = dict(zip(allowed, values, strict=False))
        unknown = set(words) - set(allowed) | set(words) & set(given)
        if unknown:
            raise TypeError(f"{name}(): incompatible constructor arguments: {sorted(unknown)}")
        given |= words
        for argument in allowed:
            setattr(self, argument, given.get(argument))
        _check_values(name, self)

    return type(name, (), {"__init__": construct})


def _check_values(name: str, made: Any) -> None:
    if name == "SamplingConfig":
        ok = made.beam_width == 1 and (made.top_p is None or 0 < made.top_p <= 1)
        ok = ok and (made.top_k is None or made.top_k >= 0)
        ok = ok and (made.seed is None or 0 <= made.seed < 2**64)
    elif name == "KvCacheConfig":
        ok = 0 < made.free_gpu_memory_fraction < 1
    elif name == "EagleConfig":
        ok = made.posterior_threshold is None or 0 <= made.posterior_threshold < 1
        ok = ok and (made.posterior_threshold is None) == bool(made.greedy_sampling)
    elif name == "Request":
        tokens = made.input_token_ids
        ok = isinstance(tokens, list) and bool(tokens) and all(type(t) is int for t in tokens)
        ok = ok and type(made.max_tokens) is int and made.max_tokens > 0
        ok = ok and all(isinstance(word, list) for word in made.stop_words or [])
    elif name == "ExternalDraftTokensConfig":
        ok = isinstance(made.tokens, list) and bool(made.tokens)
        ok = ok and (made.logits is None or made.logits.shape == (len(made.tokens), VOCAB))
    else:
        ok = True
    if not ok:
        raise ValueError(f"{name}: assertion failed: {vars(made)}")


class FakeExecutor:
    """One engine at work; `requests` is everything that it was asked."""

    def __init__(self, bindings: FakeBindings, path: Path, config: Any) -> None:
        self.bindings, self.path, self.config = bindings, path, config
        document = json.loads((path / "config.json").read_text())
        self.build, self.pretrained = document["build_config"], document["pretrained_config"]
        self.mode = MODES[self.build["speculative_decoding_mode"]]
        self.requests: list[Any] = []
        self.cancelled: list[int] = []
        self.closed = False
        self._states: dict[int, SimpleNamespace] = {}
        self._errors: deque[Any] = deque()
        self._check()

    def _check(self) -> None:
        reuse = self.config.kv_cache_config.enable_block_reuse
        if self.mode == "external" and not reuse:
            raise RuntimeError(
                "KV cache block reuse must be enabled for speculative decoding target"
            )
        if reuse and not self.build["plugin_config"]["use_paged_context_fmha"]:
            raise RuntimeError("KV cache reuse requires paged context FMHA")
        decoding = self.config.decoding_config
        if self.mode == "medusa":
            choices = decoding.medusa_choices
            deepest = max(map(len, choices))
            if (
                len(choices) > self.build["max_draft_len"]
                or deepest > self.pretrained["num_medusa_heads"]
            ):
                raise RuntimeError(
                    "Choices require larger maxPathLen than the engine was built with."
                )
            self.path_len = deepest
        elif self.mode == "eagle":
            config, layers = decoding.eagle_config, self.pretrained["num_eagle_layers"]
            if config.eagle_choices and max(map(len, config.eagle_choices)) != layers:
                raise RuntimeError(
                    "All EAGLE choices have to have exactly the same depth as layers"
                )
            self.path_len = layers
        elif self.mode == "lookahead":
            config = decoding.lookahead_decoding_config
            w, n, g = (
                config.max_window_size,
                config.max_ngram_size,
                config.max_verification_set_size,
            )
            if (0 if n == 1 else n - 2) + (w - 1 + g) * (n - 1) > self.build["max_draft_len"]:
                raise RuntimeError("lookahead config is larger than the engine's max_draft_len")
            self.path_len = n - 1
        elif self.mode == "redrafter":
            self.path_len = self.pretrained["redrafter_draft_len_per_beam"]
        else:
            self.path_len = 0

    def enqueue_request(self, request: Any) -> int:
        self.requests.append(request)
        name = len(self.requests) + 100 * len(self.bindings.executors)
        longest = len(request.input_token_ids) + request.max_tokens
        if longest > self.build["max_seq_len"]:
            raise RuntimeError("prompt length plus max tokens exceeds max_seq_len")
        problem = self.bindings.fail_request or self._refusal(request)
        if problem:
            self._errors.append(SimpleNamespace(
                request_id=name, has_error=lambda: True, error_msg=problem, result=None
            ))  # fmt: skip
        else:
            self._states[name] = SimpleNamespace(
                request=request, tokens=list(request.input_token_ids), left=request.max_tokens,
                iterations=0, accepted=0, drafted=0,
            )  # fmt: skip
        return name

    def _refusal(self, request: Any) -> str | None:
        draft = request.external_draft_tokens_config
        if draft is not None and self.mode != "external":
            return "draft tokens exceed the maximum 0 of this engine"
        if draft is not None and len(draft.tokens) > self.build["max_draft_len"]:
            return f"draft tokens {len(draft.tokens)} exceed maximum {self.build['max_draft_len']}"
        wanted = request.output_config.return_generation_logits
        gathered = getattr(self.config, "gather_generation_logits", None)
        built = self.build["gather_generation_logits"]
        if wanted and not (gathered if self.bindings.gathers else built):
            return "generation logits were asked for but are not gathered"
        return None

    def await_responses(self, timeout: timedelta) -> list[Any]:
        assert isinstance(timeout, timedelta)
        if self._errors:
            return [self._errors.popleft()]
        if self.bindings.silent:
            return []
        found = []
        for name, state in list(self._states.items()) * self.bindings.iterations_per_wait:
            while name in self._states:
                response = self._iterate(name, state)
                if response.result.is_final:
                    del self._states[name]
                if state.request.streaming or response.result.is_final:
                    found.append(response)
                    break
        return found

    def _iterate(self, name: int, state: Any) -> Any:
        """One pass of the engine over one request."""
        request, draft = state.request, state.request.external_draft_tokens_config
        new, drafted, stood = self._emit(state, draft)
        state.iterations += 1
        state.drafted, state.accepted = state.drafted + drafted, state.accepted + stood
        reason = "NOT_FINISHED"
        ends = {request.end_id, *(word[0] for word in request.stop_words or [])}
        for index, token in enumerate(new):
            if token in ends:
                new, reason = (
                    new[: index + 1],
                    "END_ID" if token == request.end_id else "STOP_WORDS",
                )
                break
        state.tokens += new
        state.left -= len(new)
        # A request with drafts is over after the step that verifies them, whatever stood.
        if (state.left <= 0 or draft is not None) and reason == "NOT_FINISHED":
            reason = "LENGTH"
        done = new if request.streaming else state.tokens[len(request.input_token_ids) :]
        return SimpleNamespace(
            request_id=name,
            has_error=lambda: False,
            error_msg="",
            result=self._result(state, done, reason),
        )

    def _emit(self, state: Any, draft: Any) -> tuple[list[int], int, int]:
        says = student if self.path.name == "draft" else teacher
        tokens, new = list(state.tokens), []
        limit = 1
        if draft is not None:
            right = continuation(tokens, len(draft.tokens) + 1)
            pairs = zip(draft.tokens, right, strict=False)
            stood = next((i for i, (a, b) in enumerate(pairs) if a != b), len(draft.tokens))
            return right[: min(stood + 1, state.left)], len(draft.tokens), stood
        if self.path_len and state.iterations:
            limit += min(PATTERN[(state.iterations - 1) % len(PATTERN)], self.path_len)
        for _ in range(min(limit, state.left)):
            new.append(says(tokens))
            tokens.append(new[-1])
        return new, self.path_len if state.iterations else 0, len(new) - 1

    def _result(self, state: Any, done: list[int], reason: str) -> Any:
        logits = None
        if state.request.output_config.return_generation_logits:
            logits = np.zeros((1, len(done), VOCAB), dtype=np.float32)
            logits[0, np.arange(len(done)), done] = 9.0
        metrics = SimpleNamespace(timing_metrics=None, kv_cache_metrics=None)
        if self.bindings.new:
            metrics.speculative_decoding = SimpleNamespace(
                acceptance_rate=0.0,
                total_accepted_draft_tokens=state.accepted,
                total_draft_tokens=state.drafted,
            )
        return SimpleNamespace(
            is_final=reason != "NOT_FINISHED",
            output_token_ids=[done],
            generation_logits=logits,
            decoding_iter=state.iterations,
            finish_reasons=[SimpleNamespace(name=reason)],
            request_perf_metrics=metrics,
        )

    def cancel_request(self, name: int) -> None:
        self.cancelled.append(name)
        self._states.pop(name, None)

    def shutdown(self) -> None:
        self.closed = True
