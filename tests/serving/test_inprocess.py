"""Many requests on one loop, from another thread."""

from __future__ import annotations

import threading

import pytest

from tests.serving.fakes import FakeReplySink
from tests.serving.test_replies import FakeByteStream
from tests.speculation.table_model import FakeTableModel, random_table
from toolkit.serving.counters import SpeculationCounters
from toolkit.serving.inprocess import LoopEngine
from toolkit.serving.replies import ReplyBuilder
from toolkit.serving.text_request import TextRequest
from toolkit.serving.worker import Worker
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.loop import SpeculativeLoop
from toolkit.speculation.request import Request

TABLE = random_table(4, 100)


class WaitingSink(FakeReplySink):
    """Knows when its request is over."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def send(self, reply):
        super().send(reply)
        if reply.final:
            self.over.set()

    def fail(self, error):
        super().fail(error)
        self.over.set()


def engine(model, queue: int = 100, active=lambda count, reused: None) -> LoopEngine:
    loop = SpeculativeLoop(model, NGramDrafter(), Fixed(3))
    return LoopEngine(
        loop, max_batch_size=model.max_batch_size, max_queue_size=queue, on_change=active
    )


def reply(sink) -> ReplyBuilder:
    counters = SpeculationCounters(lambda name, labels, amount: None)
    return ReplyBuilder(TextRequest(text="", max_tokens=1), sink, FakeByteStream(), counters)


def text_of(prompt: tuple[int, ...], length: int) -> str:
    loop = SpeculativeLoop(FakeTableModel(TABLE), None, Fixed(0))
    return bytes(loop.generate([Request(prompt, length)])[0].tokens).decode()


def test_requests_from_many_threads_get_their_own_text():
    counts = []
    served = engine(
        FakeTableModel(TABLE, max_batch_size=3), active=lambda count, reused: counts.append(count)
    )
    worker = Worker(served)
    sinks = [WaitingSink() for _ in range(12)]

    def ask(number):
        request = Request((number, number + 1), 20 + number)
        worker.post(lambda: served.submit(request, reply(sinks[number])))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    assert all(sink.over.wait(20) for sink in sinks)
    worker.close()
    texts = [sink.replies[0].text for sink in sinks]
    assert texts == [text_of((n, n + 1), 20 + n) for n in range(12)]
    assert counts[-1] == 0


def test_a_client_that_went_away_frees_its_slot(monkeypatch):
    monkeypatch.setattr("toolkit.serving.inprocess._CANCEL_CHECK_S", 0.0)
    model = FakeTableModel(TABLE)
    served = engine(model)
    sink = WaitingSink()
    served.submit(Request((1, 2), 2000), reply(sink))
    served.step()
    assert len(model.cache) == 1
    sink.gone = True
    served.step()
    assert (served.busy, model.cache, sink.failure) == (False, {}, "cancelled")


def test_a_request_that_can_never_run_hears_why():
    served = engine(FakeTableModel(TABLE, max_seq_len=16))
    sink = WaitingSink()
    served.submit(Request(tuple([1] * 16), 5), reply(sink))
    assert "max_seq_len" in sink.failure
    assert sink.code == "INVALID_ARG"
    assert not served.busy


def test_a_full_queue_refuses():
    served = engine(FakeTableModel(TABLE, max_batch_size=1), queue=1)
    sinks = [WaitingSink() for _ in range(3)]
    for sink in sinks:
        served.submit(Request((1,), 5), reply(sink))
    assert [bool(sink.failure) for sink in sinks] == [False, False, True]
    assert "queue is full" in sinks[2].failure
    assert sinks[2].code == "UNAVAILABLE"


def test_a_failing_step_fails_its_requests_and_later_ones_work():
    model = FakeTableModel(TABLE)
    served = engine(model)
    forward, model.forward = model.forward, None
    sink = WaitingSink()
    served.submit(Request((1,), 5), reply(sink))
    served.step()
    assert "TypeError" in sink.failure
    model.forward = forward
    later = WaitingSink()
    served.submit(Request((1, 2), 5), reply(later))
    while served.busy:
        served.step()
    assert later.replies[0].text == text_of((1, 2), 5)


def test_closing_tells_everybody():
    served = engine(FakeTableModel(TABLE, max_seq_len=200_000))
    sink = WaitingSink()
    served.submit(Request((1,), 100_000), reply(sink))
    worker = Worker(served)
    worker.close()
    assert sink.failure == "the server is stopping"


def test_a_job_that_raises_fails_the_requests_at_work_and_not_the_next_ones(capsys):
    served = engine(FakeTableModel(TABLE, max_seq_len=200_000))
    worker = Worker(served)
    at_work, later = WaitingSink(), WaitingSink()
    worker.post(lambda: served.submit(Request((1,), 100_000), reply(at_work)))
    worker.post(lambda: 1 / 0)
    assert at_work.over.wait(20)
    worker.post(lambda: served.submit(Request((1, 2), 5), reply(later)))
    assert later.over.wait(20)
    worker.close()
    assert at_work.failure == "the server is stopping"
    assert later.replies[0].text == text_of((1, 2), 5)
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [1, 50])
def test_posted_jobs_all_run_before_a_worker_ends(jobs):
    ran = []
    worker = Worker(engine(FakeTableModel(TABLE)))
    for number in range(jobs):
        worker.post(lambda number=number: ran.append(number))
    worker.close()
    assert ran == list(range(jobs))
