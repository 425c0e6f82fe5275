"""`spectool`: the whole loop, target and drafter, in one model."""

from __future__ import annotations

from typing import Any

from toolkit.errors import SpectoolError
from toolkit.recipe.schema import Recipe
from toolkit.serving.counters import (
    DRAFT_FAILURES,
    REUSED_TOKENS,
    SPECULATION,
    RequestGauge,
    SpeculationCounters,
)
from toolkit.serving.inprocess import LoopEngine
from toolkit.serving.prompt import prompt_tokens
from toolkit.serving.replies import ReplyBuilder
from toolkit.serving.text_request import text_request
from toolkit.serving.triton_io import Metrics, ReplySender, Settings, arrays_of
from toolkit.serving.worker import Worker


class TritonPythonModel:
    """Requests are handed to the engine's thread, which answers them as it goes."""

    def initialize(self, args: dict[str, str]) -> None:
        from toolkit.backends.interfaces import CacheOptions
        from toolkit.backends.runtime import open_runtime
        from toolkit.engine.built import BuiltModels

        settings = Settings(args)
        built = BuiltModels(
            recipe=Recipe.model_validate_json(settings.text("recipe")),
            engines=settings.paths("engine_dirs"),
            tokenizers=settings.paths("tokenizer_dirs"),
        )
        serve = built.recipe.serve
        cache = CacheOptions(
            None if serve.kv_cache_mb is None else serve.kv_cache_mb * 10**6,
            share_prefixes=serve.reuse_prefixes,
        )
        threads = settings.optional_number("cpu_threads")
        runtime = open_runtime(built, threads=threads, cache=cache)
        self._target = runtime.target
        self._tokenizer = runtime.tokenizer
        self._grammar = runtime.grammar
        self._grammar()  # the recipe's own: better not to start than to fail every request
        speculation = built.recipe.speculation
        self._max_draft_len = 0 if speculation.drafter == "none" else speculation.max_draft_len
        self._metrics = metrics = Metrics(settings.model)
        self._counters = SpeculationCounters(metrics.increment, metrics.observe)
        self._counters.start(*SPECULATION)
        self._requests = RequestGauge(metrics.set_requests, runtime.target.max_batch_size)
        self._shown = (-1, -1.0)
        self._report(0, 0)
        loop = runtime.loop()
        loop.draft_failed = self._draft_failed
        self._engine = LoopEngine(
            loop,
            max_batch_size=runtime.target.max_batch_size,
            max_queue_size=settings.number("max_queue_size", serve.max_queue_size),
            on_change=self._report,
        )
        self._worker = Worker(self._engine, settings.model)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._accept(request)

    def finalize(self) -> None:
        self._worker.close()

    def _accept(self, request: Any) -> None:
        sender = ReplySender(request)
        try:
            wanted = text_request(arrays_of(request), max_draft_len=self._max_draft_len)
            longest = self._target.max_seq_len
            prompt = prompt_tokens(self._tokenizer, wanted.text, max_seq_len=longest)
            # Compiled here and not in the engine's thread: other requests need not wait for it.
            grammar = self._grammar(wanted.guide)
        except SpectoolError as error:
            sender.fail(error)
            return
        tokens = wanted.tokens(prompt, self._tokenizer.eos_ids, grammar)
        reply = ReplyBuilder(wanted, sender, self._tokenizer.stream(), self._counters)
        self._worker.post(lambda: self._engine.submit(tokens, reply))

    def _report(self, active: int, reused: int) -> None:
        """Only what changed, KV use in hundredths: setting a gauge costs tens of microseconds."""
        used = self._target.kv_usage
        before, now = self._shown, (active, round(used, 2) if active else used)
        self._shown = now
        if now[0] != before[0]:
            self._metrics.set_active(active)
            self._requests.set(active)
        if now[1] != before[1]:
            self._metrics.set_kv_utilization(now[1])
        if reused:
            self._metrics.increment(REUSED_TOKENS, {}, reused)

    def _draft_failed(self, error: Exception, requests: int) -> None:
        import triton_python_backend_utils as pb_utils

        pb_utils.Logger.log_error(f"{requests} request(s) go on without a draft: {error!r}")
        self._counters.count(DRAFT_FAILURES, requests)
