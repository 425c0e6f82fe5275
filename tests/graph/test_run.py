"""Driving a schedule: every step once, an error ends everything, a lost node costs time only."""

import pytest

from tests.graph.test_step import step
from toolkit.errors import BuildError, InputError, RunError
from toolkit.graph import work
from toolkit.graph.local import OneByOne, SideBySide
from toolkit.graph.run import Event, run
from toolkit.graph.schedule import Node
from toolkit.graph.step import Graph, Step


class FakeWorkers:
    """Nodes by name; each step ends at the next wait, as `fates` says, once for each fate."""

    def __init__(self, *nodes, fates=None, leave=()):
        self.alive = [Node(id=name, name=name, cpus=1) for name in nodes]
        self.fates = fates or {}
        self.leave = list(leave)
        self.log, self.running, self.stopped = [], {}, False

    def nodes(self):
        return self.alive

    def start(self, step, node):
        self.log.append((step.id, node.name))
        self.running[step.id] = node

    def wait(self):
        events = []
        for name in list(self.running):
            node = self.running.pop(name)
            fate = self.fates.get(name, []).pop(0) if self.fates.get(name) else None
            if fate == "lost":
                self.alive = [other for other in self.alive if other is not node]
                events.append(Event(step=name, lost=True))
            elif fate:
                events.append(Event(step=name, error=fate))
            else:
                events.append(Event(step=name, result={"by": node.name}))
        return events

    def news(self):
        return ""

    def stop(self):
        self.stopped = True


def test_each_step_runs_once_and_is_reported():
    workers, said = FakeWorkers("x", "y"), []
    graph = Graph([step("a"), step("b", "a"), step("c", "a"), step("d", done=True)])
    ran = run(graph, workers, title="t", report=said.append)
    assert sorted(name for name, _ in workers.log) == ["a", "b", "c"]
    assert [one.step.id for one in ran] == ["a", "b", "c"]
    assert ran == said
    assert {one.result["by"] for one in ran} == {"x", "y"}
    assert workers.stopped


def test_the_steps_of_a_lost_node_run_elsewhere():
    workers = FakeWorkers("x", "y", fates={"a": ["lost"]})
    run(Graph([step("a"), step("b")]), workers, title="t")
    assert [name for name, _ in workers.log].count("a") == 2
    assert workers.log[-1] == ("a", "y")


def test_an_error_ends_everything_and_is_never_tried_again():
    workers = FakeWorkers("x", fates={"a": [BuildError("no")]})
    with pytest.raises(BuildError, match="no"):
        run(Graph([step("a"), step("b")]), workers, title="t")
    assert workers.log == [("a", "x")]
    assert workers.stopped


def test_losing_the_last_node_is_said_at_once():
    with pytest.raises(InputError, match="there is no node left"):
        run(Graph([step("a")]), FakeWorkers("x", fates={"a": ["lost"]}), title="t")


def test_an_interrupt_stops_what_runs():
    workers = FakeWorkers("x", fates={"a": [KeyboardInterrupt()]})
    with pytest.raises(KeyboardInterrupt):
        run(Graph([step("a")]), workers, title="t")
    assert workers.stopped


@pytest.fixture
def tiny_work(monkeypatch):
    table = work.Registry("step", {"artefact": f"{__name__}:double"})
    monkeypatch.setattr(work, "WORK", table)


def double(document):
    return {"twice": 2 * document["number"]}


def test_one_by_one_runs_the_document_here(tiny_work):
    graph = Graph([Step(id="a", kind="artefact", title="a", work={"number": 21})])
    (ran,) = run(graph, OneByOne(), title="t")
    assert ran.result == {"twice": 42}
    assert ran.node == "this machine"


def test_a_killed_worker_process_is_a_sentence():
    """A real one, killed from inside by a step that no registry has: its function comes by name."""
    workers = SideBySide(1)
    future = workers._pool.submit(_die)
    workers._running[future] = "convert target"
    (event,) = workers.wait()
    workers.stop()
    assert isinstance(event.error, RunError)
    assert str(event.error).startswith("convert target: a worker process was killed")


def _die():
    import os

    os.kill(os.getpid(), 9)
