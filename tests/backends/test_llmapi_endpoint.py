"""A running trtllm-serve: what is sent, what is read, and every way in which it can fail."""

from __future__ import annotations

import socket

import pytest

from tests.backends.fake_deployment import FakeDeployment
from tests.backends.fake_trtllm_serve import FIELDS, FakeTrtllmServe
from tests.backends.llmapi import ANSWER, PROMPT, limits
from toolkit.backends.llmapi_endpoint import CompletionStream, EndpointExecutor
from toolkit.backends.llmapi_http import Server, said
from toolkit.backends.llmapi_stats import require_requests, require_speculation
from toolkit.backends.tensorrt.loops import EngineLoop
from toolkit.errors import InputError, RunError
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import Request


def generate(server, max_tokens=9, timeout_s=5.0, sampling=None):
    executor = EndpointExecutor(server.url, limits(), timeout_s=timeout_s)
    loop = EngineLoop(executor, path_len=4)
    request = Request(PROMPT, max_tokens, sampling or SamplingParams())
    return executor, loop.generate([request])[0]


def test_only_documented_fields_are_sent():
    with FakeTrtllmServe(FakeDeployment()) as server:
        sampling = SamplingParams(temperature=0.5, top_k=10, top_p=0.9, seed=3)
        generate(server, sampling=sampling)
        generate(server)
    sampled, greedy = server.bodies
    assert sampled == {
        "model": "m",
        "prompt": [3, 4, 5],
        "max_tokens": 9,
        "seed": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 10,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "detokenize": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert greedy["top_k"] == 1
    assert "temperature" not in greedy
    assert set(greedy) <= FIELDS


def test_a_field_that_the_server_does_not_know_is_said_in_its_words():
    with FakeTrtllmServe(FakeDeployment()) as server:
        stream = CompletionStream(Server(server.url, timeout_s=5), {"model": "m", "gamma": 4})
        with pytest.raises(RunError, match=r"HTTP 400: Extra inputs are not permitted: gamma"):
            list(stream)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("500", r"/v1/completions: HTTP 500: Internal server error"),
        (
            "drop",
            r"/v1/completions: (the stream ended before \[DONE\] after 5|the connection broke)",
        ),
        ("malformed", r"an event is not JSON: '\{\"choices\""),
        ("error event", r"the server failed: CUDA out of memory"),
        ("not an event", r"not a server-sent event: 'Internal Server Error'"),
        ("no choices", r"an event has no choices: \{'id': 'cmpl-1'\}"),
        ("odd choice", r"an event has no choices: \{'choices': \[1\]\}"),
        ("a list", r"an event is no object: '\[\]'"),
        ("text only", r"a choice has token_ids None, although detokenize is false"),
        ("lost tokens", r"9 token\(s\) came, the server counts 10"),
        ("no end", r"the stream ended before \[DONE\] after 9 token\(s\)"),
        ("timeout", r"a request ended with 'timeout', expected one of stop, length, cancelled"),
    ],
)
def test_failures_of_a_stream_are_one_sentence(fault, message):
    with (
        FakeTrtllmServe(FakeDeployment(), fault=fault) as server,
        pytest.raises(RunError, match=message),
    ):
        generate(server)


def test_an_end_without_a_reason_is_no_end():
    body = {"model": "m", "prompt": [3, 4, 5], "max_tokens": 9, "detokenize": False,
            "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
    with FakeTrtllmServe(FakeDeployment(), fault="no reason") as server:
        stream = CompletionStream(Server(server.url, timeout_s=5), body)
        with pytest.raises(RunError, match=r"\[DONE\] without a finish_reason after 9 token"):
            list(stream)


@pytest.mark.parametrize("fault", ["hang", "silence"])
def test_a_server_that_falls_silent_is_not_waited_for_forever(fault):
    with (
        FakeTrtllmServe(FakeDeployment(), fault=fault) as server,
        pytest.raises(RunError, match=r"(no answer in|silent for) 0\.2 s"),
    ):
        generate(server, timeout_s=0.2)


def test_a_cancelled_request_disconnects():
    with FakeTrtllmServe(FakeDeployment(), fault="slow") as server:
        executor = EndpointExecutor(server.url, limits(), timeout_s=5.0)
        loop = EngineLoop(executor, path_len=4)
        request = loop.submit(Request(PROMPT, 200))
        for _ in range(4):
            loop.step()
        loop.cancel(request)
        assert server.disconnected.wait(3)


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(RunError, match=r"/v1/models: connection refused; is trtllm-serve running"):
        EndpointExecutor(url, limits())


@pytest.mark.parametrize(
    "url", ["ftp://a", "http://", "http://a:port", "http://a:8000/?x=1", "http://[::1", "", "//"]
)
def test_what_is_no_address_is_bad_input(url):
    with pytest.raises(InputError):
        Server(url, timeout_s=1)


@pytest.mark.parametrize("url", ["http://" + 70 * "a", "http://a..b", "http://127.0.0.1:1/a b"])
def test_an_address_that_leads_nowhere_is_a_failed_run(url):
    with pytest.raises(RunError, match="http://"):
        Server(url, timeout_s=1).text("/health")


def test_an_address_may_leave_the_scheme_out_and_have_a_path():
    assert Server("127.0.0.1:8000", timeout_s=1).url == "http://127.0.0.1:8000"
    server = Server("http://proxy:80/llm/", timeout_s=1)
    assert server.full_path("/metrics") == "/llm/metrics"


def test_an_address_is_shown_without_its_password():
    assert Server("http://me:secret@127.0.0.1:8000", timeout_s=1).url == "http://127.0.0.1:8000"


def test_a_server_without_a_model_says_so():
    with (
        FakeTrtllmServe(FakeDeployment(), fault="no models") as server,
        pytest.raises(RunError, match="expected a list of models"),
    ):
        EndpointExecutor(server.url, limits())


def test_iteration_statistics_are_summed():
    with FakeTrtllmServe(FakeDeployment()) as server:
        executor, output = generate(server)
        stats = require_speculation(executor.iteration_stats(), executor.where)
    assert output.tokens == ANSWER
    assert (stats.draft_tokens, stats.accepted_tokens, stats.verify_steps) == (12, 5, 3)
    assert stats.acceptance_length == 1 + 5 / 3
    assert stats.acceptance_rate == 5 / 12


def test_missing_iteration_statistics_name_the_switch():
    with FakeTrtllmServe(FakeDeployment(), iteration_stats=False) as server:
        executor, _ = generate(server)
        with pytest.raises(RunError, match="enable_iter_perf_stats: true"):
            require_speculation(executor.iteration_stats(), executor.where)


def test_statistics_without_drafts_are_no_acceptance():
    with FakeTrtllmServe(FakeDeployment(k=0)) as server:
        executor, _ = generate(server)
        with pytest.raises(RunError, match="none with draft tokens in specDecodingStats"):
            require_speculation(executor.iteration_stats(), executor.where)


def test_requests_are_measured_by_the_server_too():
    with FakeTrtllmServe(FakeDeployment()) as server:
        executor, _ = generate(server)
        (found,) = require_requests(executor.request_metrics(), executor.where)
    assert found.request_id == 1
    assert (found.draft_tokens, found.accepted_tokens) == (12, 5)
    assert (found.first_iteration, found.last_iteration) == (0, 3)
    assert found.ttft_ns == 100_000_000
    assert found.last_token_ns - found.first_token_ns == 120_000_000


@pytest.mark.parametrize("prefix", ["", "trtllm_"])
def test_prometheus_is_read_with_and_without_prefix(prefix):
    with FakeTrtllmServe(FakeDeployment(), prefix=prefix) as server:
        executor, _ = generate(server)
        generate(server)
        counts = executor.prometheus()
    assert counts.finished_requests == 2
    # Releases without the prefix count no drafts.
    assert counts.draft_tokens == (24 if prefix else None)
    assert counts.accepted_tokens == (10 if prefix else None)


def test_prometheus_that_is_not_mounted_names_the_switch():
    with FakeTrtllmServe(FakeDeployment(), perf_metrics=False) as server:
        executor, _ = generate(server)
        with pytest.raises(RunError, match=r"HTTP 404: Not Found; deploy with return_perf_metrics"):
            executor.prometheus()
        with pytest.raises(RunError, match="perf_metrics_max_requests above 0"):
            require_requests(executor.request_metrics(), executor.where)


def test_a_page_instead_of_json_is_shown():
    with (
        FakeTrtllmServe(FakeDeployment()) as server,
        pytest.raises(RunError, match=r"/html: not JSON: .<html>a page of a proxy"),
    ):
        Server(server.url, timeout_s=5).json("/html")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"object": "error", "message": "too long"}', "too long"),
        ('{"error": {"message": "no such model"}}', "no such model"),
        ('{"error": "plain"}', "plain"),
        ('{"detail": "Not Found"}', "Not Found"),
        ("Bad Gateway", "Bad Gateway"),
        ("", "no message"),
        ("[1]", "[1]"),
    ],
)
def test_errors_are_said_in_the_servers_words(body, message):
    assert said(body) == message
