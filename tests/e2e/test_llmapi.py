"""The `llmapi` repository on a real server, over a strict fake of tensorrt_llm.

The fake says in advance which tokens a prompt gets and how many drafts each step accepts, so text,
counts and times are known. Everything else is real: the server, the model's code, the clients.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.backends.fake_deployment import FakeDeployment
from tests.e2e.conftest import Deployment
from tests.serving.llmapi.deployments import deployed, recipe
from tests.serving.test_ports import free_ports
from toolkit.errors import RunError
from toolkit.serving.client import Ask, metrics, post
from toolkit.serving.lint import lint
from toolkit.serving.llmapi.client import generate, generate_stream
from toolkit.serving.repository import repository_manifest, write_repository
from toolkit.serving.server import Address, TritonServer
from toolkit.serving.smoke import smoke

pytestmark = pytest.mark.triton

CHECKOUT = Path(__file__).resolve().parents[2]
# Beside model.py, where the stub looks first.
FAKE = f"""
import sys
sys.path.insert(0, {str(CHECKOUT)!r})
from tests.backends.fake_deployment import FakeDeployment
from tests.backends.fake_tensorrt_llm import make_modules
sys.modules.update(make_modules(FakeDeployment(eos=-1, step_s=0.002)))
"""


def serve(given, directory: Path) -> Iterator[Deployment]:
    repository = write_repository(deployed(given, directory), directory / "repo")
    assert lint(repository) == []
    package = repository / "tensorrt_llm/1/tensorrt_llm"
    package.mkdir()
    (package / "__init__.py").write_text(FAKE)
    manifest = repository_manifest(repository)
    assert manifest is not None
    address = Address("127.0.0.1", *free_ports(3))
    with TritonServer(repository, list(manifest["models"]), address, timeout_s=180) as server:
        yield Deployment(address, manifest["entry"], repository, server.pid)


@pytest.fixture(scope="module")
def decoupled(tmp_path_factory) -> Iterator[Deployment]:
    yield from serve(recipe(), tmp_path_factory.mktemp("llmapi"))


@pytest.fixture(scope="module")
def unary(tmp_path_factory) -> Iterator[Deployment]:
    """One response to a request, deltas asked for in vain, and a queue of one."""
    section = {"pytorch": {"decoupled": False, "max_queue_size": 1}}
    yield from serve(recipe(serve=section), tmp_path_factory.mktemp("unary"))


@pytest.fixture(scope="module")
def deltas(tmp_path_factory) -> Iterator[Deployment]:
    section = {"pytorch": {"stream_deltas": True}}
    yield from serve(recipe(serve=section), tmp_path_factory.mktemp("deltas"))


def wanted(prompt: str, max_tokens: int) -> tuple[str, int, int]:
    """Text, drafted and accepted, from the fake itself."""
    fake = FakeDeployment(eos=-1)
    request = fake.begin()
    steps = fake.answer(request, list(prompt.encode()), max_tokens, (), False)
    tokens = [token for new, _ in steps for token in new]
    return "".join(f" {token}" for token in tokens), request.drafted, request.accepted


def ask(prompt: str = "Hello", max_tokens: int = 20, **more) -> Ask:
    return Ask(text_input=prompt, max_tokens=max_tokens, return_perf_metrics=True, **more)


def raw(server: Deployment, **inputs) -> dict:
    url = f"{server.address.http}/v2/models/{server.model}/generate"
    with post(url, {"text_input": "Hello", **inputs}, 30) as response:
        return dict(json.load(response))


@pytest.mark.parametrize("which", ["decoupled", "unary"])
def test_text_and_counts_of_one_response(which, request):
    server = request.getfixturevalue(which)
    text, drafted, accepted = wanted("Hello", 20)
    answer = generate(server.address.http, server.model, ask())
    assert answer.text == text
    assert (answer.total_draft_tokens, answer.total_accepted_draft_tokens) == (drafted, accepted)
    assert answer.acceptance_rate == pytest.approx(accepted / drafted)


def test_figures_are_numbers_in_the_types_that_the_config_declares(decoupled):
    found = raw(
        decoupled, sampling_param_max_tokens=20, sampling_param_return_perf_metrics=True,
        return_finish_reason=True, return_stop_reason=True, return_cumulative_logprob=True,
    )  # fmt: skip
    assert (found["finish_reason"], found["stop_reason"]) == ("length", "None")
    assert found["cumulative_logprob"] == -0.5 * 20
    assert found["arrival_time_ns"] == 10_000_000_000
    assert found["first_token_time_ns"] == 10_100_000_000
    assert found["kv_cache_alloc_new_blocks"] == 1
    assert found["kv_cache_hit_rate"] == 0.25
    plain = raw(decoupled, sampling_param_max_tokens=4)
    assert set(plain) == {"model_name", "model_version", "text_output"}


def test_a_stream_has_all_text_so_far_or_only_what_is_new(decoupled, deltas):
    text, drafted, _ = wanted("Hello", 20)
    whole = list(generate_stream(decoupled.address.http, decoupled.model, ask()))
    assert len(whole) > 5
    assert [text.startswith(answer.text) for answer in whole] == [True] * len(whole)
    assert sorted(len(a.text) for a in whole) == [len(a.text) for a in whole]
    assert (whole[-1].text, whole[-1].total_draft_tokens) == (text, drafted)
    new = list(generate_stream(deltas.address.http, deltas.model, ask()))
    assert len(new) == len(whole)
    assert "".join(answer.text for answer in new) == text


def test_stop_words_end_the_text(decoupled):
    text, _, _ = wanted("Hello", 20)
    word = text.split()[7]
    found = raw(
        decoupled, sampling_param_max_tokens=20, sampling_param_stop=[f" {word}"],
        return_finish_reason=True, return_stop_reason=True,
    )  # fmt: skip
    assert found["text_output"] == text[: text.find(f" {word}")]
    assert (found["finish_reason"], found["stop_reason"]) == ("stop", f" {word}")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"sampling_param_max_tokens": 0}, "sampling_param_max_tokens: 0, expected a whole number"),
        ({"sampling_param_top_p": 1.5, "sampling_param_temperature": -1.0}, "_temperature: -1"),
        ({"text_input": ""}, "text_input: empty"),
        ({"text_input": ["a", "b"]}, "text_input: 2 values, expected one"),
        ({"sampling_param_best_of": 2}, "does not allow multiple returns"),
        ({"text_input": "x" * 9000}, "should not exceed max_num_tokens"),
        ({"stop": True}, "needs the request id"),
    ],
)
def test_what_is_wrong_with_a_request_is_said_and_the_next_one_is_served(decoupled, inputs, said):
    with pytest.raises(RunError, match=said):
        raw(decoupled, **inputs)
    assert raw(decoupled, sampling_param_max_tokens=3)["text_output"] == wanted("Hello", 3)[0]


def test_streaming_from_a_model_that_does_not_is_refused(unary):
    with pytest.raises(RunError, match=r"serve\.pytorch\.decoupled"):
        raw(unary, streaming=True)


def test_more_than_may_wait_are_refused(unary):
    """4 sequences and a queue of 1."""
    asks = [ask(f"request {i}", 120) for i in range(12)]

    def send(one: Ask) -> str:
        try:
            return generate(unary.address.http, unary.model, one).text
        except RunError as error:
            return str(error)

    with ThreadPoolExecutor(12) as threads:
        got = list(threads.map(send, asks))
    refused = [text for text in got if "the queue is full (1 requests" in text]
    served = [wanted(one.text_input, 120)[0] for one in asks]
    assert len(refused) >= 1
    assert sum(a == b for a, b in zip(got, served, strict=True)) == 12 - len(refused) >= 5


def active(server: Deployment) -> float:
    name = f'spectool_active_sequences{{model="{server.model}"}}'
    return metrics(server.address.metrics)[name]


def wait_until_free(server: Deployment) -> None:
    deadline = time.monotonic() + 10
    while active(server):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_client_that_goes_away_frees_its_sequence(decoupled):
    wait_until_free(decoupled)
    stream = generate_stream(decoupled.address.http, decoupled.model, ask(max_tokens=100_000))
    next(stream)
    assert active(decoupled) == 1
    stream.close()
    wait_until_free(decoupled)


def grpc_request(server: Deployment, request_id: str, **inputs):
    import tritonclient.grpc as grpc

    tensors = []
    kinds = {str: "BYTES", int: "INT32", bool: "BOOL"}
    for name, value in inputs.items():
        kind = kinds[type(value)]
        array = np.array([value.encode() if kind == "BYTES" else value])
        array = array.astype({"BYTES": object, "INT32": np.int32, "BOOL": np.bool_}[kind])
        tensor = grpc.InferInput(name, [1], kind)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    responses: list = []
    client = grpc.InferenceServerClient(server.address.grpc)
    client.start_stream(lambda result, error: responses.append((result, error)))
    client.async_stream_infer(
        server.model, tensors, request_id=request_id, enable_empty_final_response=True
    )
    return client, responses


def until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_request_is_stopped_by_its_id_over_grpc(decoupled):
    long = {"text_input": "Hello", "sampling_param_max_tokens": 100_000, "streaming": True}
    client, responses = grpc_request(decoupled, "mine", **long)
    until(lambda: len(responses) > 2)
    stopper, stopped = grpc_request(decoupled, "mine", text_input="x", stop=True)
    until(lambda: stopped)
    assert stopped[0][1] is None
    until(lambda: responses[-1][1] is not None)
    assert str(responses[-1][1]) == "cancelled"
    wait_until_free(decoupled)
    client.close()
    stopper.close()


def test_many_streams_at_once_each_get_their_own_text(decoupled):
    asks = [ask(f"prompt {i}", 10 + i) for i in range(16)]

    def last(one: Ask) -> str:
        return list(generate_stream(decoupled.address.http, decoupled.model, one))[-1].text

    with ThreadPoolExecutor(16) as threads:
        got = list(threads.map(last, asks))
    assert got == [wanted(one.text_input, one.max_tokens)[0] for one in asks]


def test_counts_are_added_up_on_metrics(deltas):
    def counts() -> list[float]:
        found = metrics(deltas.address.metrics)
        names = ("num_draft_tokens", "num_accepted_tokens")
        return [
            *(found.get(f'spec_decode_{n}_total{{model="{deltas.model}"}}', 0.0) for n in names),
            found.get(f'generation_tokens_total{{model="{deltas.model}"}}', 0.0),
        ]

    before = counts()
    text, drafted, accepted = wanted("Hello", 30)
    assert generate(deltas.address.http, deltas.model, ask(max_tokens=30)).text == text
    until(lambda: counts() != before)
    assert [b - a for a, b in zip(before, counts(), strict=True)] == [drafted, accepted, 30]


def test_the_smoke_test_of_serve_passes(decoupled):
    answer = smoke(decoupled.address, decoupled.model, layout="llmapi")
    assert answer.text == wanted("Once upon a time", 16)[0]


def test_arguments_that_the_release_refuses_are_a_reason_in_the_log(tmp_path):
    given = recipe(pytorch={"llm_args": {"max_beam_width": 1, "sampler_type": "auto"}})
    with pytest.raises(RunError, match=r"TensorRT-LLM 1\.2\.1 refuses model\.yaml: .*sampler_type"):
        next(iter(serve(given, tmp_path)))


def test_health_is_not_held_up_by_a_long_request(decoupled):
    stream = generate_stream(decoupled.address.http, decoupled.model, ask(max_tokens=100_000))
    next(stream)
    started = time.monotonic()
    with urllib.request.urlopen(f"{decoupled.address.http}/v2/health/ready") as answer:
        assert answer.status == 200
    assert time.monotonic() - started < 2
    stream.close()
    wait_until_free(decoupled)
