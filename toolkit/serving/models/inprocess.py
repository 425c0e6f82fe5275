"""`spectool`: the whole loop, target and drafter, in one model."""

from __future__ import annotations

from typing import Any

from toolkit.errors import SpectoolError
from toolkit.recipe.schema import Recipe
from toolkit.serving.counters import SPECULATION, RequestGauge, SpeculationCounters
from toolkit.serving.inprocess import LoopEngine
from toolkit.serving.llm import DEFAULT_QUEUE_SIZE
from toolkit.serving.prompt import prompt_tokens
from toolkit.serving.replies import ReplyBuilder
from toolkit.serving.text_request import text_request
from toolkit.serving.triton_io import Metrics, ReplySender, Settings, arrays_of
from toolkit.serving.worker import Worker


class TritonPythonModel:
    """Requests are handed to the engine's thread, which answers them as it goes."""

    def initialize(self, args: dict[str, str]) -> None:
        from toolkit.backends.runtime import open_runtime
        from toolkit.engine.built import BuiltModels

        settings = Settings(args)
        built = BuiltModels(
            recipe=Recipe.model_validate_json(settings.text("recipe")),
            engines=settings.paths("engine_dirs"),
            tokenizers=settings.paths("tokenizer_dirs"),
        )
        runtime = open_runtime(built, threads=settings.optional_number("cpu_threads"))
        self._tokenizer = runtime.tokenizer
        self._grammar = runtime.grammar
        self._grammar()  # the recipe's own: better not to start than to fail every request
        speculation = built.recipe.speculation
        self._max_draft_len = 0 if speculation.drafter == "none" else speculation.max_draft_len
        metrics = Metrics(settings.model)
        metrics.set_active(0)
        self._counters = SpeculationCounters(metrics.increment, metrics.observe)
        self._counters.start(*SPECULATION)
        requests = RequestGauge(metrics.set_requests, runtime.target.max_batch_size)

        def show(active: int) -> None:
            metrics.set_active(active)
            requests.set(active)

        self._engine = LoopEngine(
            runtime.loop(),
            max_batch_size=runtime.target.max_batch_size,
            max_queue_size=settings.number("max_queue_size", DEFAULT_QUEUE_SIZE),
            on_active=show,
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
            prompt = prompt_tokens(self._tokenizer, wanted.text)
            # Compiled here and not in the engine's thread: other requests need not wait for it.
            grammar = self._grammar(wanted.guide)
        except SpectoolError as error:
            sender.fail(str(error))
            return
        tokens = wanted.tokens(prompt, self._tokenizer.eos_ids, grammar)
        reply = ReplyBuilder(wanted, sender, self._tokenizer.stream(), self._counters)
        self._worker.post(lambda: self._engine.submit(tokens, reply))
