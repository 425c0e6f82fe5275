"""The adapter to Triton's Python backend, against a stand-in for the module of the stub."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from toolkit.errors import CapacityError, InputError, RunError
from toolkit.serving import triton_io
from toolkit.serving.failures import CancelledError
from toolkit.serving.replies import Reply
from toolkit.serving.triton_io import Metrics, ReplySender, Settings, ask


class FakeMetric:
    """Like Triton's, it must not be touched by two threads at once, nor beside another."""

    entered = 0
    clashes = 0

    def __init__(self, labels):
        self.labels, self.value = labels, 0.0

    def _touch(self):
        FakeMetric.entered += 1
        FakeMetric.clashes += FakeMetric.entered > 1
        time.sleep(0.0005)
        FakeMetric.entered -= 1

    def increment(self, amount):
        self._touch()
        self.value += amount

    def set(self, value):
        self._touch()
        self.value = value

    observe = increment


class FakeMetricFamily:
    COUNTER, GAUGE, HISTOGRAM = 0, 1, 2
    made: list[FakeMetric]

    def __init__(self, name, description, kind):
        self.name, self.kind = name, kind

    def Metric(self, labels, buckets=None):  # noqa: N802 - Triton's spelling
        assert (buckets is not None) == (self.kind == self.HISTOGRAM)
        assert buckets is None or buckets == sorted(set(buckets))
        FakeMetricFamily.made.append(FakeMetric(labels))
        return FakeMetricFamily.made[-1]


class FakeTensor:
    def __init__(self, name, values):
        self._name, self._values = name, values

    def name(self):
        return self._name

    def as_numpy(self):
        return self._values


class FakeResponse:
    def __init__(self, output_tensors, error=None):
        self.outputs, self._error = output_tensors, error

    def output_tensors(self):
        return self.outputs

    def has_error(self):
        return self._error is not None

    def error(self):
        return SimpleNamespace(message=lambda: self._error)


class FakeTritonError:
    INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL = range(4)

    def __init__(self, message, code):
        self.message, self.code = message, code


class FakeInferenceRequest:
    """Answers what the test put into `answer`."""

    answer: FakeResponse

    def __init__(self, **wanted):
        self.wanted = wanted

    def exec(self):
        return self.answer


class FakeResponseSender:
    def __init__(self, *, broken=False):
        self.sent, self.broken, self.cancelled = [], broken, False

    def send(self, response, flags):
        if self.broken:
            raise RuntimeError("stream is closed")
        self.sent.append((response, flags))

    def is_cancelled(self):
        return self.cancelled


@pytest.fixture(autouse=True)
def pb_utils(monkeypatch):
    FakeMetricFamily.made = []
    FakeMetric.entered = FakeMetric.clashes = 0
    module = SimpleNamespace(
        Tensor=FakeTensor,
        InferenceResponse=FakeResponse,
        InferenceRequest=FakeInferenceRequest,
        TritonError=FakeTritonError,
        MetricFamily=FakeMetricFamily,
        Logger=SimpleNamespace(log_warn=lambda text: None),
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)
    return module


def test_metrics_are_touched_by_one_thread_at_a_time():
    metrics = Metrics("m")

    def work():
        for _ in range(20):
            metrics.increment("generation_tokens_total", {}, 1)
            metrics.increment("spec_decode_num_drafts_total", {"position": "0"}, 2)
            metrics.set_active(3)
            metrics.observe("time_to_first_token_seconds", {}, 0.5)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert FakeMetric.clashes == 0
    values = {tuple(metric.labels.items()): metric.value for metric in FakeMetricFamily.made}
    assert values[("model", "m"), ("position", "0")] == 320
    assert len(FakeMetricFamily.made) == 4


def sender(fake):
    return ReplySender(SimpleNamespace(get_response_sender=lambda: fake))


def test_replies_carry_counts_only_when_asked():
    fake = FakeResponseSender()
    answering = sender(fake)
    answering.send(Reply("a", 4, 3, with_counts=False, final=False))
    answering.send(Reply("b", 4, 3, with_counts=True, final=True))
    (first, more), (last, final) = fake.sent
    assert [tensor.name() for tensor in first.outputs] == ["text_output"]
    assert {tensor.name(): tensor.as_numpy().item() for tensor in last.outputs} == {
        "text_output": b"b",
        "acceptance_rate": 0.75,
        "total_accepted_draft_tokens": 3,
        "total_draft_tokens": 4,
    }
    assert (more, final) == (0, 1)


def test_nothing_is_sent_after_the_last_response():
    fake = FakeResponseSender()
    answering = sender(fake)
    answering.fail(RunError("no"))
    answering.send(Reply("late", 0, 0, with_counts=False, final=True))
    assert len(fake.sent) == 1


@pytest.fixture
def farewells(monkeypatch):
    """What waits to be sent."""
    jobs = []
    monkeypatch.setattr(triton_io, "_farewells", lambda: SimpleNamespace(post=jobs.append))
    return jobs


@pytest.mark.parametrize(
    "last",
    [
        lambda answering: answering.fail(CancelledError()),
        lambda answering: answering.send(Reply("b", 0, 0, with_counts=False, final=True)),
    ],
)
def test_the_last_response_of_a_cancelled_stream_waits(farewells, last):
    fake = FakeResponseSender()
    answering = sender(fake)
    answering.send(Reply("a", 0, 0, with_counts=False, final=False))
    fake.cancelled = True
    last(answering)
    assert len(fake.sent) == 1
    assert not answering.cancelled()  # as after any last response
    answering.fail(RunError("late"))
    [send] = farewells
    send()
    assert [flags for _, flags in fake.sent] == [0, 1]


def test_a_cancelled_request_that_has_no_response_yet_is_ended_at_once(farewells):
    fake = FakeResponseSender()
    fake.cancelled = True
    sender(fake).fail(CancelledError())
    assert [flags for _, flags in fake.sent] == [1]
    assert farewells == []


def test_a_client_that_is_gone_does_not_disturb_the_engine():
    sender(FakeResponseSender(broken=True)).send(Reply("a", 0, 0, with_counts=False, final=True))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("no"), FakeTritonError.INVALID_ARG),
        (CapacityError("no"), FakeTritonError.UNAVAILABLE),
        (CancelledError(), FakeTritonError.CANCELLED),
        (RunError("no"), FakeTritonError.INTERNAL),
    ],
)
def test_a_failure_carries_its_code(error, code):
    fake = FakeResponseSender()
    sender(fake).fail(error)
    [(response, final)] = fake.sent
    said = response._error
    assert (said.message, said.code, final) == (str(error), code, 1)


def test_an_inner_models_error_names_the_model():
    FakeInferenceRequest.answer = FakeResponse([], "queue is full")
    with pytest.raises(CapacityError, match="tensorrt_llm: queue is full"):
        ask("tensorrt_llm", [], [])


def test_an_inner_models_answer_is_arrays_by_name():
    FakeInferenceRequest.answer = FakeResponse([FakeTensor("x", np.arange(2))])
    assert ask("m", [], ["x"])["x"].tolist() == [0, 1]


def settings(**parameters):
    config = {
        "max_batch_size": 4,
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
    return Settings(
        {
            "model_config": json.dumps(config),
            "model_name": "m",
            "model_repository": "/repo/m",
        }
    )


def test_parameters_that_are_empty_or_left_over_count_as_unset():
    found = settings(a="", b="${b}", c="c")
    assert [found.text(name, "default") for name in "abcd"] == [
        "default",
        "default",
        "c",
        "default",
    ]
    assert found.optional_number("a") is None


def test_relative_paths_start_at_the_model():
    found = settings(gpt_model_path="1/engine", engine_dirs='{"target": "/abs", "draft": "1/d"}')
    assert str(found.path("gpt_model_path")) == "/repo/m/1/engine"
    paths = {role: str(path) for role, path in found.paths("engine_dirs").items()}
    assert paths == {"target": "/abs", "draft": "/repo/m/1/d"}


def test_tensors_are_contiguous_and_of_their_type():
    made = triton_io.tensor("x", np.ones((2, 3))[:, ::2], np.int32)
    assert made.as_numpy().dtype == np.int32
    assert made.as_numpy().flags.c_contiguous
