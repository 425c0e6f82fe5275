"""Between Triton's Python backend and plain Python: tensors, responses, metrics, inner requests.

`triton_python_backend_utils` exists only inside a server's stub process, so it is imported where it
is used.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import SpectoolError
from toolkit.serving.calls import Call, Emission
from toolkit.serving.counters import (
    ACTIVE_SEQUENCES,
    DESCRIPTIONS,
    GAUGES,
    HISTOGRAMS,
    KV_UTILIZATION,
    RUNNING,
    WAITING,
)
from toolkit.serving.failures import code_of, said_by
from toolkit.serving.later import Later
from toolkit.serving.replies import Reply
from toolkit.serving.text_request import Arrays


class Settings:
    """The name, place and parameters of the model that this process serves."""

    def __init__(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.model = args["model_name"]
        self.directory = Path(args["model_repository"])
        self.max_batch_size = max(int(config.get("max_batch_size", 0)), 1)
        self._values = {
            key: value["string_value"] for key, value in config.get("parameters", {}).items()
        }

    def text(self, name: str, default: str = "") -> str:
        """Empty and left over `${placeholders}` count as unset, as in TensorRT-LLM's models."""
        value = self._values.get(name, "")
        return default if not value or value.startswith("${") else value

    def number(self, name: str, default: int) -> int:
        value = self.text(name)
        return int(value) if value else default

    def optional_number(self, name: str) -> int | None:
        value = self.text(name)
        return int(value) if value else None

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        return value.lower() in ("true", "1", "yes") if value else default

    def path(self, name: str) -> Path:
        """Relative paths start at the model's directory, so that a repository can be moved."""
        return self.directory / self.text(name)

    def paths(self, name: str) -> dict[str, Path]:
        """A parameter that holds a JSON object of role -> path."""
        return {role: self.directory / path for role, path in json.loads(self.text(name)).items()}


def arrays_of(request: Any) -> Arrays:
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def tensor(name: str, values: Any, dtype: Any) -> Any:
    import triton_python_backend_utils as pb_utils

    return pb_utils.Tensor(name, np.ascontiguousarray(values, dtype=dtype))


def text_tensor(name: str, text: str) -> Any:
    import triton_python_backend_utils as pb_utils

    return pb_utils.Tensor(name, np.array([[text.encode()]], dtype=object))


def response(*outputs: Any) -> Any:
    import triton_python_backend_utils as pb_utils

    return pb_utils.InferenceResponse(output_tensors=list(outputs))


def error_response(error: SpectoolError) -> Any:
    import triton_python_backend_utils as pb_utils

    kind = pb_utils.TritonError
    failed = kind(str(error), getattr(kind, code_of(error)))
    return pb_utils.InferenceResponse(output_tensors=[], error=failed)


_FAREWELL_S = 2.0  # Triton's one thread for gRPC streams may be busy with prompts of megabytes


@cache
def _farewells() -> Later:
    return Later(_FAREWELL_S)


class _Sender:
    """A response sender that outlives its client: what cannot be delivered is dropped.

    One thread at a time: asking for cancellation after the last response brings Triton 2.51 down.
    So does the last response of a cancelled gRPC stream that comes before Triton has seen its write
    of the response before: it frees the stream for each of the two. That response has to wait.
    """

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._begun = self._done = False
        self._lock = threading.Lock()

    def cancelled(self) -> bool:
        with self._lock:
            return not self._done and bool(self._sender.is_cancelled())

    def fail(self, error: SpectoolError) -> None:
        self._deliver(error_response(error), final=True)

    def _respond(self, outputs: list[Any], *, final: bool) -> None:
        self._deliver(response(*outputs), final=final)

    def _deliver(self, response: Any, *, final: bool) -> None:
        with self._lock:
            if self._done:
                return
            farewell = final and self._begun and bool(self._sender.is_cancelled())
            self._begun, self._done = True, final
            if farewell:
                _farewells().post(lambda: self._send(response, final=True))
            else:
                self._send(response, final=final)

    def _send(self, response: Any, *, final: bool) -> None:
        import triton_python_backend_utils as pb_utils

        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        try:
            self._sender.send(response, flags=flags)
        except Exception as error:  # noqa: BLE001 - one client's broken stream is not the engine's
            pb_utils.Logger.log_warn(f"response not delivered: {error}")


class ReplySender(_Sender):
    """Sends the replies of a text request."""

    def send(self, reply: Reply) -> None:
        outputs = [text_tensor("text_output", reply.text)]
        if reply.with_counts:
            outputs += perf_tensors(reply.draft_tokens, reply.accepted_tokens)
        if reply.output_tokens is not None:
            outputs.append(tensor("num_output_tokens", [[reply.output_tokens]], np.int32))
        self._respond(outputs, final=reply.final)


class EmissionSender(_Sender):
    """Sends the answer to an LLM model's call, in TensorRT-LLM's shapes [1, beam 1, ...]."""

    def __init__(self, request: Any, call: Call, *, with_input: bool, with_counts: bool) -> None:
        super().__init__(request)
        self._prefix = list(call.input_ids) if with_input else []
        self._with_counts = with_counts

    def send(self, emission: Emission) -> None:
        tokens = [*self._prefix, *emission.tokens]
        outputs = [
            tensor("output_ids", [[tokens]], np.int32),
            tensor("sequence_length", [[len(tokens)]], np.int32),
        ]
        if emission.logits is not None:
            outputs.append(tensor("generation_logits", emission.logits[None, None], np.float32))
        if self._with_counts:
            outputs += perf_tensors(emission.drafted, emission.accepted)
        self._respond(outputs, final=True)

    def finish(self) -> None:
        """No tensors: the answer to `stop`."""
        self._respond([], final=True)


class ArraySender(_Sender):
    """Sends arrays by output name, as they are."""

    def send(self, arrays: Arrays, *, final: bool) -> None:
        self._respond([tensor(name, a, a.dtype) for name, a in arrays.items()], final=final)


def perf_tensors(drafted: int, accepted: int) -> list[Any]:
    return [
        tensor("acceptance_rate", [[accepted / drafted if drafted else 0.0]], np.float32),
        tensor("total_accepted_draft_tokens", [[accepted]], np.int32),
        tensor("total_draft_tokens", [[drafted]], np.int32),
    ]


class Metrics:
    """This model's counters, gauges and histograms on the server's /metrics.

    One thread at a time: a metric of Triton 2.51 that two threads touch at once brings the whole
    server down.
    """

    def __init__(self, model: str) -> None:
        import triton_python_backend_utils as pb_utils

        self._model = model
        self._lock = threading.Lock()
        kinds = pb_utils.MetricFamily
        self._families = (
            {
                name: kinds(name=name, description=text, kind=kinds.COUNTER)
                for name, text in DESCRIPTIONS.items()
            }
            | {
                name: kinds(name=name, description=text, kind=kinds.GAUGE)
                for name, text in GAUGES.items()
            }
            | {
                name: kinds(name=name, description=text, kind=kinds.HISTOGRAM)
                for name, (text, _) in HISTOGRAMS.items()
            }
        )
        self._metrics: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}

    def increment(self, name: str, labels: Mapping[str, str], amount: float) -> None:
        with self._lock:
            self._metric(name, labels).increment(amount)

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        with self._lock:
            self._metric(name, labels).observe(value)

    def set_active(self, count: int) -> None:
        self._set(ACTIVE_SEQUENCES, count)

    def set_requests(self, running: int, waiting: int) -> None:
        self._set(RUNNING, running)
        self._set(WAITING, waiting)

    def set_kv_utilization(self, part: float) -> None:
        self._set(KV_UTILIZATION, part)

    def _set(self, name: str, value: float) -> None:
        with self._lock:
            self._metric(name, {}).set(value)

    def _metric(self, name: str, labels: Mapping[str, str]) -> Any:
        key = (name, tuple(labels.items()))
        if key not in self._metrics:
            more = {"buckets": list(HISTOGRAMS[name][1])} if name in HISTOGRAMS else {}
            labelled = {"model": self._model, **labels}
            self._metrics[key] = self._families[name].Metric(labels=labelled, **more)
        return self._metrics[key]


def ask(
    model: str,
    inputs: list[Any],
    outputs: list[str],
    *,
    request_id: str = "",
    parameters: dict[str, int] | None = None,
) -> dict[str, NDArray[Any]]:
    """The response of another model of this server, or its error: CapacityError or RunError.

    Never with `exec(decoupled=True)`: in Triton 2.51 such calls made from several threads end with
    one of them waiting for ever for its last response.
    """
    import triton_python_backend_utils as pb_utils

    request = pb_utils.InferenceRequest(
        model_name=model,
        request_id=request_id,
        inputs=inputs,
        requested_output_names=outputs,
        **({"parameters": parameters} if parameters else {}),
    )
    answer = request.exec()
    if answer.has_error():
        raise said_by(model, answer.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}
