"""Run steps on this machine: in this process, or in several side by side."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from toolkit.errors import RunError
from toolkit.graph.run import Event
from toolkit.graph.schedule import Node
from toolkit.graph.step import Step
from toolkit.graph.work import run_step

HERE = "this machine"


def here(jobs: int) -> Node:
    """This machine: `jobs` steps at a time. Builds share its GPUs among themselves."""
    return Node(id="local", name=HERE, cpus=jobs, gpus=1 << 16)


class OneByOne:
    """Each step in this process, so that nothing has to start and progress bars are its own."""

    def __init__(self) -> None:
        self._next: Step | None = None
        self._nodes = (here(1),)

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def start(self, step: Step, node: Node) -> None:
        self._next = step

    def wait(self) -> Sequence[Event]:
        assert self._next is not None
        return [Event(step=self._next.id, result=run_step(self._next.kind, self._next.work))]

    def news(self) -> str:
        return ""

    def stop(self) -> None:
        """Nothing runs unless somebody waits for it."""


class SideBySide:
    """In processes, so that Ctrl-C ends a conversion as fast as it ends us."""

    def __init__(self, jobs: int) -> None:
        self._nodes = (here(jobs),)
        self._running: dict[Future[Mapping[str, Any]], str] = {}
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=get_context("spawn"), initializer=_end_on_interrupt
        )

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def start(self, step: Step, node: Node) -> None:
        with _interrupts_later():
            self._running[self._pool.submit(run_step, step.kind, step.work)] = step.id

    def wait(self) -> Sequence[Event]:
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        return [_event(self._running.pop(future), future) for future in done]

    def news(self) -> str:
        return ", ".join(self._running.values())

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _event(step: str, future: Future[Mapping[str, Any]]) -> Event:
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        error = RunError(
            f"{step}: a worker process was killed, perhaps for want of memory; try fewer --jobs"
        )
    return Event(step=step, error=error) if error else Event(step=step, result=future.result())


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back while processes start: one that is still importing would print its stack."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_on_interrupt() -> None:
    """In a worker: Ctrl-C ends it without a word, also one that came while it started."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
