"""One thread owns an engine; requests are posted to it and it steps while there is work."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Engine(Protocol):
    """Something that advances all of its requests together. Used by one thread only."""

    @property
    def busy(self) -> bool:
        """There is something to step."""
        ...

    def patience(self) -> float:
        """How many seconds a step should wait for requests that are likely to join it."""
        ...

    def step(self) -> None:
        """Advance every request; failures are reported to the requests, not raised."""
        ...

    def close(self) -> None:
        """Fail every request; new ones may still come."""
        ...


class Worker:
    """Runs jobs between the steps of an engine, in the engine's thread."""

    def __init__(self, engine: Engine, name: str = "engine") -> None:
        self._engine = engine
        self._jobs: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, job: Callable[[], None]) -> None:
        """Have `job` run before the next step."""
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()

    def close(self, timeout: float = 10.0) -> None:
        """Finish the step at hand, run what was posted, close the engine."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._jobs or self._engine.busy or self._closed)
            try:
                self._run_jobs()
                if self._closed:
                    self._engine.close()
                    return
                self._gather()
                if self._engine.busy:
                    self._engine.step()
            except Exception:  # noqa: BLE001 - a bug, but the requests to come must not hang on it
                traceback.print_exc()
                self._engine.close()

    def _gather(self) -> None:
        deadline = time.monotonic() + self._engine.patience()
        while self._engine.patience() > 0 and (left := deadline - time.monotonic()) > 0:
            with self._wake:
                self._wake.wait_for(lambda: self._jobs or self._closed, left)
            self._run_jobs()

    def _run_jobs(self) -> None:
        while self._jobs:
            self._jobs.popleft()()
