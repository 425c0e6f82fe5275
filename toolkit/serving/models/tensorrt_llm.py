"""`tensorrt_llm` and `tensorrt_llm_draft`: TensorRT-LLM's tensors in front of our own engine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from toolkit.errors import InputError, SpectoolError
from toolkit.registry import BACKENDS
from toolkit.serving.calls import Call
from toolkit.serving.counters import REUSED_TOKENS
from toolkit.serving.llm import DEFAULT_QUEUE_SIZE, CallEngine
from toolkit.serving.llm_request import LlmRequest, llm_request
from toolkit.serving.triton_io import EmissionSender, Metrics, Settings, arrays_of
from toolkit.serving.worker import Worker
from toolkit.speculation.sampling import Role

# A draft must not choose its tokens with the numbers that the target chooses with.
ROLES = {"target": Role.EMIT, "draft": Role.DRAFT}


class TritonPythonModel:
    """Requests are handed to the engine's thread, which answers them as it goes."""

    def initialize(self, args: dict[str, str]) -> None:
        from toolkit.backends.cpu.blocks import memory_budget
        from toolkit.checkpoint.tokenizer import load_tokenizer

        settings = Settings(args)
        backend = BACKENDS["cpu"]()
        model = backend.load(
            settings.path("gpt_model_path"),
            threads=settings.optional_number("cpu_threads"),
            # Target and draft are processes of one machine.
            kv_cache_bytes=settings.optional_number("kv_cache_bytes") or memory_budget() // 2,
        )
        where = settings.text("tokenizer_dir")
        self._tokenizer = load_tokenizer(settings.path("tokenizer_dir")) if where else None
        self._metrics = Metrics(settings.model)
        self._with_input = not settings.flag("exclude_input_in_output", False)
        self._engine = CallEngine(
            model,
            ROLES[settings.text("role")],
            vocab_size=settings.optional_number("vocab_size"),
            max_queue_size=settings.number("max_queue_size", DEFAULT_QUEUE_SIZE),
            on_change=self._report,
        )
        self._report(0, 0)
        self._worker = Worker(self._engine, settings.model)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._accept(request)

    def finalize(self) -> None:
        self._worker.close()

    def _accept(self, request: Any) -> None:
        parameters = json.loads(request.parameters() or "{}")
        wanted = llm_request(arrays_of(request), request.request_id(), parameters)
        call, problems = self._with_grammar(wanted)
        with_input = self._with_input if wanted.with_input is None else wanted.with_input
        sender = EmissionSender(
            request, call, with_input=with_input, with_counts=wanted.with_counts
        )
        if wanted.stop:
            self._worker.post(lambda: self._stop(wanted.call.request_id, sender))
        elif problems:
            sender.fail(InputError("; ".join(problems)))
        else:
            self._worker.post(lambda: self._engine.submit(call, sender))

    def _with_grammar(self, wanted: LlmRequest) -> tuple[Call, list[str]]:
        """The call with its guide compiled, here and not in the engine's thread; what is wrong."""
        if wanted.guide is None:
            return wanted.call, wanted.problems
        if self._tokenizer is None:
            reason = "guided_decoding_guide_type: this model has no tokenizer_dir"
            return wanted.call, [*wanted.problems, reason]
        try:
            grammar = self._tokenizer.grammar(wanted.guide)
        except SpectoolError as error:
            return wanted.call, [*wanted.problems, str(error)]
        return replace(wanted.call, grammar=grammar), wanted.problems

    def _stop(self, request_id: str, sender: EmissionSender) -> None:
        self._engine.stop(request_id)
        sender.finish()

    def _report(self, active: int, reused: int) -> None:
        self._metrics.set_active(active)
        if reused:
            self._metrics.increment(REUSED_TOKENS, {}, reused)
