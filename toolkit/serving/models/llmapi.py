"""`tensorrt_llm` over the LLM API: TensorRT-LLM's PyTorch backend batches, drafts and verifies."""

from __future__ import annotations

import json
from typing import Any

from toolkit.errors import SpectoolError
from toolkit.serving.counters import (
    ACCEPTED_TOKENS,
    DRAFT_TOKENS,
    DRAFTS,
    GENERATION_TOKENS,
    SPECULATION,
    RequestFigures,
    RequestGauge,
    SpeculationCounters,
)
from toolkit.serving.llmapi.in_flight import Finished, InFlight
from toolkit.serving.llmapi.load import load_llm, take_gpus
from toolkit.serving.llmapi.model_yaml import read_model_yaml
from toolkit.serving.llmapi.request import llm_request, wants_stop
from toolkit.serving.triton_io import ArraySender, Metrics, Settings, arrays_of

_DEFAULT_BATCH = 2048  # LLM()'s own


class TritonPythonModel:
    """Requests go to the LLM as they come; each is read by a thread of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        config = read_model_yaml(settings.directory / args["model_version"])
        group = (json.loads(args["model_config"]).get("instance_group") or [{}])[0]
        gpus = take_gpus(
            settings.text("gpu_device_ids"),
            int(group.get("count", 1)),
            args.get("model_instance_name", ""),
        )
        self._llm, params = load_llm(config.llm_args, gpus, settings.text("tensorrt_llm_release"))
        self._decoupled = config.decoupled
        metrics = Metrics(settings.model)
        self._counters = SpeculationCounters(metrics.increment, metrics.observe)
        self._counters.start(*SPECULATION)
        running = int(config.llm_args.get("max_batch_size") or _DEFAULT_BATCH)
        requests = RequestGauge(metrics.set_requests, running)

        def show(active: int) -> None:
            metrics.set_active(active)
            requests.set(active)

        show(0)
        self._flights = InFlight(
            self._llm,
            params,
            most=running + config.max_queue_size,
            max_queue_size=config.max_queue_size,
            check_period_s=config.cancellation_check_period_ms / 1000,
            deltas=config.stream_deltas,
            on_change=show,
            on_finish=self._count,
        )

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._accept(request)

    def finalize(self) -> None:
        self._flights.close()
        self._llm.shutdown()

    def _accept(self, request: Any) -> None:
        sender, arrays = ArraySender(request), arrays_of(request)
        try:
            if wants_stop(arrays):
                self._flights.stop(request.request_id())
                sender.send({}, final=True)
                return
            wanted = llm_request(arrays, decoupled=self._decoupled)
        except SpectoolError as error:
            sender.fail(error)
            return
        self._flights.submit(wanted, sender, request.request_id())

    def _count(self, finished: Finished) -> None:
        self._counters.count(GENERATION_TOKENS, finished.tokens)
        self._counters.count(DRAFT_TOKENS, finished.drafted)
        self._counters.count(ACCEPTED_TOKENS, finished.accepted)
        self._counters.count(DRAFTS, finished.drafts)
        ttft_s, e2e_s = finished.times_s
        if finished.reason != "cancelled":
            self._counters.finished(
                RequestFigures(
                    finish_reason=finished.reason,
                    output_tokens=finished.tokens,
                    drafts=finished.drafts,
                    accepted=finished.accepted,
                    ttft_s=ttft_s,
                    e2e_s=e2e_s,
                )
            )
        self._counters.flush()
