"""One served text model, asked over gRPC streams that share a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError, RunError
from toolkit.optional import require
from toolkit.serving.load.jobs import Job
from toolkit.serving.load.sample import Sample

# Models that clients may be meant to ask, the best first.
ENTRIES = ("spectool", "tensorrt_llm_bls", "tensorrt_llm", "ensemble")
# Our words for an input, and those of the layout around TensorRT-LLM's LLM API.
LLMAPI = {
    "stream": "streaming",
    "max_tokens": "sampling_param_max_tokens",
    "temperature": "sampling_param_temperature",
    "top_k": "sampling_param_top_k",
    "top_p": "sampling_param_top_p",
    "seed": "sampling_param_seed",
    "stop_words": "sampling_param_stop",
    "return_perf_metrics": "sampling_param_return_perf_metrics",
}
_WISHES = {"end_id", "return_perf_metrics", "return_num_output_tokens"}  # asked where there are any
_TYPES: dict[str, Any] = {
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "BOOL": np.bool_,
}
_CONNECT_S = 10.0
_SENT_S = 0.02  # after that a request is with the server


@dataclass(frozen=True)
class Declared:
    """One input as the server describes it."""

    dtype: str
    rank: int  # batch dimension included


class Endpoint:
    """`async with Endpoint.open(address, model) as endpoint: sample = await endpoint.ask(...)`."""

    def __init__(
        self, grpc: Any, client: Any, model: str, inputs: Mapping[str, Declared], counts: bool
    ) -> None:
        self._grpc, self._client = grpc, client
        self.model = model
        self._inputs = inputs
        self.counts_tokens = counts  # its responses say how many tokens they are made of

    @classmethod
    async def open(cls, address: str, model: str | None = None) -> Endpoint:
        """Connect to `host:port` of gRPC, and see that the model can be asked for text."""
        grpc = require("tritonclient.grpc.aio", extra="triton", why="streaming over gRPC")
        client = grpc.InferenceServerClient(address)
        try:
            found = model or await _entry(client, address)
            described = await client.get_model_metadata(found, client_timeout=_CONNECT_S)
            inputs = {i.name: Declared(i.datatype, len(i.shape)) for i in described.inputs}
            _check_text_model(found, inputs)
            outputs = {output.name for output in described.outputs}
            return cls(grpc, client, found, inputs, "num_output_tokens" in outputs)
        except grpc_errors() as error:
            await client.close()
            raise RunError(f"{address}: {_said(error)}") from None
        except BaseException:
            await client.close()
            raise

    async def close(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def ask(self, job: Job, due_ns: int, timeout_s: float) -> Sample:
        """Send a request and read its responses to the end, or until its client goes away."""
        sample = Sample(due_ns)
        inputs = self._tensors(job)
        sample.late_ns = max(perf_counter_ns() - due_ns, 0)
        stream = self._client.stream_infer(self._request(inputs), stream_timeout=timeout_s)
        gone = job.cancel_after == 0
        if gone:
            asyncio.get_running_loop().call_later(_SENT_S, stream.cancel)
        try:
            async for result, error in stream:
                if error is not None:
                    sample.fail(_said(error))
                    break
                self._take(sample, result)
                if len(sample.chunk_ns) == job.cancel_after:
                    stream.cancel()
                    gone = True
        except grpc_errors() as error:
            sample.fail(_said(error))
        except asyncio.CancelledError:
            stream.cancel()
            if not gone:
                raise  # it is this program that ends
        if gone:
            sample.outcome = "cancelled"
        sample.e2e_ns = perf_counter_ns() - due_ns
        return sample

    async def _request(self, inputs: list[Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": self.model, "inputs": inputs}

    def _take(self, sample: Sample, result: Any) -> None:
        if (text := _value(result, "text_output")) is None:
            return
        if text:
            sample.chunk_ns.append(perf_counter_ns() - sample.due_ns)
            sample.text += text.decode(errors="replace")
        for field, output in _COUNTS.items():
            if (count := _value(result, output)) is not None:
                setattr(sample, field, int(float(count)))

    def _tensors(self, job: Job) -> list[Any]:
        theirs = {} if "max_tokens" in self._inputs else LLMAPI
        arrays = {}
        for ours, value in job.ask.inputs().items():
            name = theirs.get(ours, ours)
            if (declared := self._inputs.get(name)) is not None:
                arrays[name] = _array(declared, value)
            elif ours not in _WISHES:
                raise InputError(f"{self.model} has no input {name!r}")
        return [self._tensor(name, array) for name, array in {**arrays, **job.raw}.items()]

    def _tensor(self, name: str, array: NDArray[Any]) -> Any:
        from tritonclient.utils import np_to_triton_dtype

        tensor = self._grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        return tensor


_COUNTS = {
    "output_tokens": "num_output_tokens",
    "draft_tokens": "total_draft_tokens",
    "accepted_tokens": "total_accepted_draft_tokens",
}


def grpc_errors() -> tuple[type[Exception], ...]:
    """What a server's refusal or absence raises."""
    import grpc
    from tritonclient.utils import InferenceServerException

    return (grpc.RpcError, InferenceServerException)


async def _entry(client: Any, address: str) -> str:
    """The model to ask, where nobody named one."""
    index = await client.get_model_repository_index(client_timeout=_CONNECT_S)
    ready = [model.name for model in index.models if model.state == "READY"]
    found = [name for name in ENTRIES if name in ready]
    if not found:
        names = ", ".join(ready) or "none"
        raise InputError(f"{address}: which model? --model NAME (ready: {names})")
    return found[0]


def _check_text_model(model: str, inputs: Mapping[str, Declared]) -> None:
    if "text_input" not in inputs or not inputs.keys() & {"max_tokens", LLMAPI["max_tokens"]}:
        raise InputError(
            f"{model} takes {', '.join(inputs) or 'nothing'}: not a text model "
            "(text_input and max_tokens)"
        )


def _value(result: Any, name: str) -> Any:
    array = result.as_numpy(name)
    return None if array is None or not array.size else array.reshape(-1)[0]


def _array(declared: Declared, value: Any) -> NDArray[Any]:
    """A batch of one, in the type that the server wants."""
    values = list(value) if isinstance(value, tuple) else [value]
    shape = [*[1] * (declared.rank - 1), len(values)]
    if declared.dtype == "BYTES":
        return np.array([text.encode() for text in values], dtype=object).reshape(shape)
    return np.array(values, dtype=_TYPES[declared.dtype]).reshape(shape)


def _said(error: Any) -> str:
    """What went wrong, with gRPC's word for it where there is one."""
    if hasattr(error, "details"):  # the connection's
        return f"{error.code().name}: {error.details()}"
    status = (error.status() or "").removeprefix("StatusCode.")
    return f"{status}: {error.message()}" if status else str(error.message())
