"""Drive a schedule with workers until every step is done, one fails, or somebody interrupts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolkit.graph.schedule import Node, Schedule
from toolkit.graph.step import Graph, Step
from toolkit.progress import progress


@dataclass(frozen=True, kw_only=True)
class Event:
    """A step that ended: with a result, with an error, or because its node went away."""

    step: str
    result: Mapping[str, Any] | None = None
    error: BaseException | None = None
    lost: bool = False


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A step that was done, where and when: seconds since the run began."""

    step: Step
    node: str
    start: float
    seconds: float
    result: Mapping[str, Any]

    @property
    def end(self) -> float:
        return self.start + self.seconds


class Workers(Protocol):
    """Where steps run: processes here, or a cluster."""

    def nodes(self) -> Sequence[Node]:
        """Those that are alive now."""

    def start(self, step: Step, node: Node) -> None: ...

    def wait(self) -> Sequence[Event]:
        """Those that ended; may return none, so that nodes and progress are looked at."""

    def news(self) -> str:
        """The last words of what runs, for the progress display."""

    def stop(self) -> None:
        """Cancel what runs, and return when it has cleaned up."""


def run(
    graph: Graph,
    workers: Workers,
    *,
    title: str,
    report: Callable[[Ran], None] = lambda ran: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Ran]:
    """Every step that is not done yet, each once; `report` hears of each as it ends."""
    schedule, began = Schedule(graph), clock()
    starts: dict[str, tuple[str, float]] = {}
    finished: list[Ran] = []
    steps = graph.steps
    try:
        with progress(title, sum(not step.done for step in graph)) as bar:
            known: frozenset[str] = frozenset()
            while not schedule.over:
                nodes = workers.nodes()
                if (now := frozenset(node.id for node in nodes)) != known:
                    schedule.refuse_impossible(nodes)
                    known = now
                for step, node in schedule.start(nodes):
                    starts[step.id] = (node.name, clock() - began)
                    workers.start(step, node)
                for event in workers.wait():
                    if event.error is not None:
                        raise event.error
                    if event.lost:
                        schedule.lost(event.step)
                        continue
                    schedule.finish(event.step)
                    name, start = starts[event.step]
                    ran = Ran(
                        step=steps[event.step],
                        node=name,
                        start=start,
                        seconds=clock() - began - start,
                        result=event.result or {},
                    )
                    finished.append(ran)
                    report(ran)
                    bar.advance()
                bar.describe(workers.news() or title)
    finally:
        workers.stop()
    return finished
