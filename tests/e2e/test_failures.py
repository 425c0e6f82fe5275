"""What clients of a real server hear when it has no room, and when a model goes while they wait."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import loop_output
from tests.serving.conftest import with_layout
from tests.serving.test_ports import free_ports
from toolkit.engine.built import BuiltModels
from toolkit.errors import RunError
from toolkit.serving.client import Ask, GrpcStream, generate, metrics
from toolkit.serving.failures import no_room
from toolkit.serving.repository import repository_manifest, write_repository
from toolkit.serving.server import Address, TritonServer

pytestmark = pytest.mark.triton

LONG = Ask(text_input="a", max_tokens=250, end_id=-1, stream=True)
SHORT = Ask(text_input="Hello", max_tokens=8)
AT_ONCE = 24  # eight run and one waits


@dataclass(frozen=True)
class Running:
    """A server whose models come and go, with little room."""

    address: Address
    model: str

    def control(self, model: str, what: str) -> None:
        url = f"{self.address.http}/v2/repository/models/{model}/{what}"
        with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=60) as answer:
            assert answer.status == 200

    def state(self, model: str) -> str:
        url = f"{self.address.http}/v2/repository/index"
        with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=60) as answer:
            return next(m["state"] for m in json.load(answer) if m["name"] == model)

    def gone(self, model: str) -> None:
        """Wait until an unloaded model has left, memory and all."""
        wait_for(lambda: self.state(model) == "UNAVAILABLE", f"{model} never left")

    def gauges(self, name: str) -> list[float]:
        found = metrics(self.address.metrics)
        return [value for key, value in found.items() if key.startswith(f"{name}{{")]

    def idle(self) -> None:
        """Wait until nobody holds a place, a sequence or KV memory."""
        for name in ("spectool_active_sequences", "num_requests_running", "num_requests_waiting"):
            wait_for(lambda name=name: not any(self.gauges(name)), f"{name} stays above 0")


def wait_for(ready: Any, otherwise: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def start(built: BuiltModels, layout: str, directory: Path) -> Iterator[Running]:
    with_it = with_layout(built, layout)
    # In `bls` that is 240 tokens of KV memory for the target: one long text, not two.
    serve = with_it.recipe.serve.model_copy(update={"max_queue_size": 1, "kv_cache_mb": 1})
    recipe = with_it.recipe.model_copy(update={"serve": serve})
    repository = write_repository(
        BuiltModels(recipe, built.engines, built.tokenizers), directory / "repo"
    )
    manifest = repository_manifest(repository)
    assert manifest is not None
    address = Address("127.0.0.1", *free_ports(3))
    with TritonServer(repository, list(manifest["models"]), address, timeout_s=180, explicit=True):
        yield Running(address, manifest["entry"])


@pytest.fixture(scope="module")
def small_bls(built, tmp_path_factory) -> Iterator[Running]:
    yield from start(built, "bls", tmp_path_factory.mktemp("small-bls"))


@pytest.fixture(scope="module")
def small_inprocess(built, tmp_path_factory) -> Iterator[Running]:
    yield from start(built, "inprocess", tmp_path_factory.mktemp("small-inprocess"))


@pytest.fixture(params=["small_bls", "small_inprocess"])
def small(request) -> Running:
    found: Running = request.getfixturevalue(request.param)
    found.idle()
    return found


def said(running: Running, ask: Ask) -> str:
    """The error that a stream ends with, or nothing."""
    try:
        with GrpcStream(running.address.grpc, running.model, ask) as stream:
            list(stream)
    except RunError as error:
        return str(error)
    return ""


def test_a_server_without_room_says_so_and_then_has_room_again(small, runtime):
    asks = [replace(LONG, text_input=f"{i} a") for i in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(lambda ask: said(small, ask), asks))
    assert answers.count("") >= 1
    refused = set(answers) - {""}
    assert "the queue is full (1 requests wait already); try again later" in refused
    if small.model == "tensorrt_llm_bls":  # its models have no loop that lets requests take turns
        assert any("no KV memory" in reason for reason in refused), refused
    assert all(no_room(reason) for reason in refused), refused
    small.idle()
    assert generate(small.address.http, small.model, SHORT).text == loop_output(runtime, SHORT)[0]


def call(running: Running, tokens: int, text: tuple[int, ...] = (5,)) -> tuple[int, str]:
    """HTTP status and gRPC code of the same call to the target model, one after the other."""
    import tritonclient.grpc as grpc
    from tritonclient.utils import InferenceServerException

    values = {"input_ids": text, "input_lengths": (len(text),), "request_output_len": (tokens,)}
    tensors = [
        {"name": name, "datatype": "INT32", "shape": [1, len(value)], "data": value}
        for name, value in values.items()
    ]
    url = f"{running.address.http}/v2/models/tensorrt_llm/infer"
    request = urllib.request.Request(url, json.dumps({"inputs": tensors}).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status = int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        status = error.code
    inputs = [grpc.InferInput(name, [1, len(value)], "INT32") for name, value in values.items()]
    for made, value in zip(inputs, values.values(), strict=True):
        made.set_data_from_numpy(np.array([value], np.int32))
    with grpc.InferenceServerClient(running.address.grpc) as client:
        try:
            client.infer("tensorrt_llm", inputs)
        except InferenceServerException as error:
            return status, error.status().removeprefix("StatusCode.")
    return status, "OK"


def test_an_llm_models_failures_have_codes(small_bls):
    """Triton 2.51 hands codes on for models that are not decoupled, and for those alone."""
    small_bls.idle()
    assert call(small_bls, 4) == (200, "OK")
    assert call(small_bls, -1) == (400, "INVALID_ARGUMENT")
    assert call(small_bls, 4, tuple(range(1, 251)) * 2) == (400, "INVALID_ARGUMENT")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        codes = set(threads.map(lambda _: call(small_bls, 240), range(AT_ONCE)))
    assert {status for status, _ in codes} == {200, 503}
    assert {code for _, code in codes} <= {"OK", "UNAVAILABLE"}


class Client(threading.Thread):
    """Streams one long text, or one after the other; `begun` is set when a first piece has come."""

    def __init__(self, running: Running, ask: Ask, *, until_an_error: bool = False) -> None:
        super().__init__(daemon=True)
        self.running, self.ask, self.again = running, ask, until_an_error
        self.begun, self.text, self.error = threading.Event(), "", ""
        self.start()

    def run(self) -> None:
        try:
            self.ask_once()
            while self.again:
                self.ask_once()
        except RunError as error:
            self.error = str(error)

    def ask_once(self) -> None:
        self.text = ""
        with GrpcStream(self.running.address.grpc, self.running.model, self.ask) as stream:
            for answer in stream:
                self.text += answer.text
                self.begun.set()

    def end(self) -> None:
        self.join(30)
        assert not self.is_alive(), "its request hangs"


def test_when_the_target_goes_its_requests_end_with_one_error(small_bls, runtime):
    small_bls.idle()
    before = generate(small_bls.address.http, small_bls.model, SHORT)
    client = Client(small_bls, LONG, until_an_error=True)
    assert client.begun.wait(30)
    small_bls.control("tensorrt_llm", "unload")
    client.end()
    assert client.error == "tensorrt_llm: not loaded now; try again later"
    assert loop_output(runtime, LONG)[0].startswith(client.text)
    assert said(small_bls, SHORT) == client.error
    small_bls.gone("tensorrt_llm")
    small_bls.idle()
    small_bls.control("tensorrt_llm", "load")
    assert generate(small_bls.address.http, small_bls.model, SHORT) == before
    assert generate(small_bls.address.http, "ensemble", SHORT).text.endswith(before.text)


def test_when_the_draft_goes_its_requests_go_on_without(small_bls, runtime):
    small_bls.idle()
    client = Client(small_bls, LONG)
    assert client.begun.wait(30)
    small_bls.control("tensorrt_llm_draft", "unload")
    client.end()
    assert (client.text, client.error) == (loop_output(runtime, LONG)[0], "")
    counted = replace(SHORT, return_perf_metrics=True)
    assert generate(small_bls.address.http, small_bls.model, counted).total_draft_tokens == 0
    small_bls.gone("tensorrt_llm_draft")
    small_bls.idle()
    small_bls.control("tensorrt_llm_draft", "load")
    drafted = generate(small_bls.address.http, small_bls.model, counted).total_draft_tokens
    assert drafted == loop_output(runtime, counted)[1].stats.draft_tokens > 0


def test_when_the_asked_model_goes_its_requests_end_first(small, runtime):
    client = Client(small, LONG)
    assert client.begun.wait(30)
    small.control(small.model, "unload")
    with pytest.raises(RunError, match="has no available versions"):
        generate(small.address.http, small.model, SHORT)
    client.end()
    assert (client.text, client.error) == (loop_output(runtime, LONG)[0], "")
    small.gone(small.model)
    small.idle()
    small.control(small.model, "load")
    assert generate(small.address.http, small.model, SHORT).text == loop_output(runtime, SHORT)[0]
