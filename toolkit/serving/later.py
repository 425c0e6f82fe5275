"""Jobs that must wait a while, without making anybody wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue


class Later:
    """Runs each job `delay_s` after it was posted, in a thread that all of them share."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._jobs: SimpleQueue[tuple[float, Callable[[], None]]] = SimpleQueue()
        threading.Thread(target=self._run, name="later", daemon=True).start()

    def post(self, job: Callable[[], None]) -> None:
        self._jobs.put((time.monotonic() + self._delay_s, job))

    def _run(self) -> None:
        while True:
            due, job = self._jobs.get()
            time.sleep(max(due - time.monotonic(), 0.0))
            job()
