"""A small client of the served text models: HTTP generate and generate_stream, gRPC streaming.

HTTP needs only the standard library. Which model to ask is `entry` in a repository's manifest.
"""

from __future__ import annotations

import json
import queue
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from toolkit.errors import RunError
from toolkit.optional import require
from toolkit.serving.contract import TENSORRT_LLM_BLS

_DTYPES: dict[str, Any] = {
    "INT32": np.int32,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "BOOL": np.bool_,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The inputs of a text model; what is None is left out."""

    text_input: str
    max_tokens: int
    stream: bool | None = None
    stop_words: tuple[str, ...] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    end_id: int | None = None
    num_draft_tokens: int | None = None
    use_draft_logits: bool | None = None
    exclude_input_in_output: bool | None = None
    return_perf_metrics: bool | None = None
    return_num_output_tokens: bool | None = None
    guided_decoding_guide_type: str | None = None
    guided_decoding_guide: str | None = None

    def inputs(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Answer:
    """One response; the counts are there when the request asked for them."""

    text: str
    acceptance_rate: float | None = None
    total_accepted_draft_tokens: int | None = None
    total_draft_tokens: int | None = None
    num_output_tokens: int | None = None


def generate(http: str, model: str, ask: Ask, *, timeout_s: float = 600.0) -> Answer:
    """One request, one response. `http` is like http://127.0.0.1:8000."""
    with post(f"{http}/v2/models/{model}/generate", ask.inputs(), timeout_s) as response:
        return _answer(json.load(response))


def generate_stream(
    http: str, model: str, ask: Ask, *, timeout_s: float = 600.0
) -> Iterator[Answer]:
    """Responses as they come, over server-sent events; closing the iterator cancels."""
    inputs = {**ask.inputs(), "stream": True}
    with post(f"{http}/v2/models/{model}/generate_stream", inputs, timeout_s) as response:
        for line in response:
            if line.startswith(b"data:"):
                yield _answer(json.loads(line[5:]))


class GrpcStream:
    """One streaming request over gRPC; iterate over it, `cancel` ends it."""

    def __init__(self, grpc: str, model: str, ask: Ask) -> None:
        client = require("tritonclient.grpc", extra="triton", why="streaming over gRPC")
        self._responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client = client.InferenceServerClient(grpc)
        self._client.start_stream(lambda result, error: self._responses.put((result, error)))
        inputs = [_input(client, name, value) for name, value in ask.inputs().items()]
        self._client.async_stream_infer(model, inputs, enable_empty_final_response=True)

    def __iter__(self) -> Iterator[Answer]:
        while True:
            result, error = self._responses.get()
            if error is not None:
                raise RunError(str(error))
            response = result.get_response()
            if response.outputs:
                yield _answer({o.name: _first(result.as_numpy(o.name)) for o in response.outputs})
            if response.parameters["triton_final_response"].bool_param:
                return

    def cancel(self) -> None:
        self._client.stop_stream(cancel_requests=True)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> GrpcStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def metrics(url: str, *, timeout_s: float = 10.0) -> dict[str, float]:
    """Prometheus samples by `name{labels}` as the server prints them."""
    with urllib.request.urlopen(url, timeout=timeout_s) as response:
        lines = response.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def post(url: str, inputs: dict[str, Any], timeout_s: float) -> Any:
    """The open response to a JSON body; RunError says what the server said."""
    body = json.dumps(inputs).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        return urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            raise RunError(_said(error.read(), str(error))) from None
    except OSError as error:
        raise RunError(f"{url}: no answer: {getattr(error, 'reason', error)}") from None


def get(url: str, timeout_s: float) -> Any:
    """The JSON at a URL; None where the server has nothing there, RunError without a server."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        error.close()
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{url}: no answer: {getattr(error, 'reason', error)}") from None


def _said(body: bytes, otherwise: str) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or otherwise


def _answer(fields: dict[str, Any]) -> Answer:
    if "error" in fields:
        raise RunError(str(fields["error"]))
    text, rate = fields["text_output"], fields.get("acceptance_rate")
    return Answer(
        text.decode() if isinstance(text, bytes) else str(text),
        None if rate is None else float(rate),
        _count(fields, "total_accepted_draft_tokens"),
        _count(fields, "total_draft_tokens"),
        _count(fields, "num_output_tokens"),
    )


def _count(fields: dict[str, Any], name: str) -> int | None:
    return int(fields[name]) if fields.get(name) is not None else None


def _first(array: Any) -> Any:
    return array.reshape(-1)[0]


def _input(client: Any, name: str, value: Any) -> Any:
    """A batch of one, in the type that the contract gives the input."""
    declared = TENSORRT_LLM_BLS.input(name)
    assert declared is not None
    values = list(value) if isinstance(value, tuple) else [value]
    if declared.dtype == "STRING":
        array = np.array([[text.encode() for text in values]], dtype=object)
    else:
        array = np.array([values], dtype=_DTYPES[declared.dtype])
    kind = "BYTES" if declared.dtype == "STRING" else declared.dtype
    tensor = client.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor
