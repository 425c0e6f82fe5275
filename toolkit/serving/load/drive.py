"""Run a load: send requests as the arrivals say, wait for every answer, keep a sample of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from time import perf_counter_ns
from typing import Any

from toolkit.serving.load.arrivals import Arrivals, Closed, Poisson, Until
from toolkit.serving.load.endpoint import Endpoint
from toolkit.serving.load.jobs import Job
from toolkit.serving.load.sample import Sample

_NS = 1_000_000_000
Done = Callable[[Job, Sample], None]


async def drive(
    endpoint: Endpoint,
    jobs: Iterator[Job],
    arrivals: Arrivals,
    until: Until,
    *,
    timeout_s: float = 600.0,  # of one request: after that it counts as failed
    on_done: Done = lambda job, sample: None,
) -> list[Sample]:
    """Samples in the order in which the requests were due."""
    run = _Run(endpoint, jobs, until, timeout_s, on_done)
    await (run.closed(arrivals) if isinstance(arrivals, Closed) else run.open(arrivals))
    return sorted(run.samples, key=lambda sample: sample.due_ns)


class _Run:
    def __init__(
        self, endpoint: Endpoint, jobs: Iterator[Job], until: Until, timeout_s: float, on_done: Done
    ) -> None:
        self._endpoint, self._jobs, self._until = endpoint, jobs, until
        self._timeout_s, self._on_done = timeout_s, on_done
        self._begun_ns = perf_counter_ns()
        self._sent = 0
        self.samples: list[Sample] = []

    async def closed(self, arrivals: Closed) -> None:
        async with _Tasks() as tasks:
            for _ in range(arrivals.clients):
                tasks.start(self._client())

    async def open(self, arrivals: Poisson) -> None:
        async with _Tasks() as tasks:
            for after in arrivals.times():
                due_ns = self._begun_ns + int(after * _NS)
                if not self._more(due_ns):
                    return
                await asyncio.sleep(max(due_ns - perf_counter_ns(), 0) / _NS)
                tasks.start(self._ask(due_ns))

    async def _client(self) -> None:
        while self._more(perf_counter_ns()):
            await self._ask(perf_counter_ns())

    def _more(self, due_ns: int) -> bool:
        """Take one of the requests that may be sent, if there is one at that time."""
        until = self._until
        if until.seconds is not None and due_ns - self._begun_ns >= until.seconds * _NS:
            return False
        self._sent += 1
        return until.requests is None or self._sent <= until.requests

    async def _ask(self, due_ns: int) -> None:
        job = next(self._jobs)
        sample = await self._endpoint.ask(job, due_ns, self._timeout_s)
        self.samples.append(sample)
        self._on_done(job, sample)


class _Tasks:
    """Wait for all; when one raises, the others are cancelled. (TaskGroup came in Python 3.11.)"""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and self._error is None:
            self._error = error
            self._cancel()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def __aenter__(self) -> _Tasks:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            self._cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._error is not None and error is None:
            raise self._error
