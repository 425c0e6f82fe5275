"""Run steps on a Ray cluster. Ray starts and watches them; which one starts where, we decide.

A step goes to one node with what it needs reserved there, and its result is a small document: what
it makes travels through the store. Steps are run again when their node went away, and for no other
reason.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from toolkit.errors import InputError, MissingDependencyError, RunError, SpectoolError
from toolkit.graph.probe import facts
from toolkit.graph.run import Event
from toolkit.graph.schedule import Node
from toolkit.graph.step import Step
from toolkit.graph.where import RayAddress
from toolkit.graph.work import run_step
from toolkit.optional import require

PREFIX = "spectool."  # of our node labels: ray start --labels spectool.gpu=sm_90
_CONNECT_S, _PROBE_S, _HEAD_S = 5.0, 30.0, 5.0
_POLL_S = 0.5
_CANCEL_S = 8.0  # a build is asked to end for 3 s before it is killed


@contextmanager
def connect(address: RayAddress, log: Callable[[str], None]) -> Iterator[Cluster]:
    """A session with the cluster, which ends with everything that runs in it."""
    if address.host:
        _require_listener(address.host, address.port)
    ray = require("ray", extra="ray", why="--on ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(
            address=str(address),
            log_to_driver=False,
            logging_level=logging.ERROR,
            ignore_reinit_error=False,
        )
    except ConnectionError as error:
        if address.host is None:
            raise InputError(
                "--on ray: no Ray cluster runs on this machine; start one (ray start --head) or "
                "name its head (--on ray:HOST:PORT)"
            ) from None
        raise RunError(f"--on ray:{address}: {_line(error)}") from None
    except (RuntimeError, ValueError, OSError) as error:
        if "ersion mismatch" in str(error):
            raise MissingDependencyError(
                f"--on ray:{address}: {' '.join(str(error).split())}"
            ) from None
        raise RunError(f"--on ray:{address}: {_line(error)}") from None
    # Ray prints what it hears of dead nodes to stdout, whatever log_to_driver says; we say it too.
    vars(require("ray._private.worker", extra="ray", why="--on ray"))["_worker_logs_enabled"] = (
        False
    )
    try:
        yield Cluster(ray, log)
    finally:
        ray.shutdown()


class Cluster:
    """The nodes of a cluster, and the steps that run on them."""

    def __init__(self, ray: Any, log: Callable[[str], None]) -> None:
        self._ray, self._log = ray, log
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._head = (host, int(port))
        self._remote = ray.remote(max_retries=0)(_attempt)
        self._probe = ray.remote(max_retries=0, num_cpus=0)(facts)
        self._asked: tuple[Sequence[str], str | None] | None = None
        self._probes: dict[str, Any] = {}  # node id -> reference
        self._facts: dict[str, Mapping[str, Any] | None] = {}  # None: it cannot be used
        self._running: dict[Any, tuple[Step, Node]] = {}
        self._gone: set[str] = set()  # nodes that Ray may still list

    # -- nodes

    def offered(self) -> list[Node]:
        """Nodes as Ray knows them, before any was asked: what no label says, is not known yet."""
        return [
            Node(**_capacity(found, name), labels=_labels(found), probed=False)
            for found, name in self._alive()
        ]

    def survey(self, paths: Sequence[str], seen: str | None) -> list[Node]:
        """Ask every node what it has and sees; `seen` is a new file in the store, if it has any."""
        self._asked = (list(paths), seen)
        deadline = time.monotonic() + _PROBE_S
        while (nodes := self.nodes(), self._probes)[1] and time.monotonic() < deadline:
            self._ray.wait([*self._probes.values()], timeout=_POLL_S)
        for name in self._probes:
            self._log(f"node {name[:6]}: no answer in {_PROBE_S:g} s, so it is not used")
        return nodes

    def nodes(self) -> list[Node]:
        """Those that are alive and have answered; whoever is new is asked now."""
        nodes = []
        for found, name in self._alive():
            key = found["NodeID"]
            self._ask(key, name)
            if told := self._facts.get(key):
                labels = {**told["labels"], **_labels(found)}
                nodes.append(
                    Node(**_capacity(found, name), labels=labels, paths=frozenset(told["paths"]))
                )
        return nodes

    def alike(self, fact: str) -> Mapping[str, Any]:
        """What most nodes say of this; from here on the others are not used."""
        said = [(node, self.facts(node)[fact]) for node in self.nodes()]
        groups = [[node for node, told in said if told == one] for _, one in said]
        most = max(groups, key=len)
        found: Mapping[str, Any] = self.facts(most[0])[fact]
        for node, told in said:
            if told != found:
                self._log(f"node {node.name} is not used: its {fact} is {told}, not {found}")
                self._gone.add(node.id)
        return found

    def facts(self, node: Node) -> Mapping[str, Any]:
        """What the node said of itself."""
        return self._facts[node.id] or {}

    def _ask(self, key: str, name: str) -> None:
        if key in self._facts or self._asked is None:
            return
        if key not in self._probes:
            options = {"scheduling_strategy": self._at(key)}
            self._probes[key] = self._probe.options(**options).remote(*self._asked)
        if not self._ray.wait([self._probes[key]], timeout=0)[0]:
            return
        try:
            told = self._ray.get(self._probes.pop(key))
        except self._ray.exceptions.RayError as error:
            self._facts[key] = None
            reason = "it has no spectool" if "No module named 'toolkit" in str(error) else ""
            self._log(f"node {name} is not used: {reason or _line(error)}")
            return
        self._facts[key] = told if told["store"] else None
        if not told["store"]:
            self._log(
                f"node {name} is not used: its disk does not have the store; share the "
                "directory, or use --store s3://..."
            )

    def _alive(self) -> list[tuple[Mapping[str, Any], str]]:
        """Ray's record of every node that is up, with a name that no other has."""
        self._require_head()
        known = sorted(self._ray.nodes(), key=lambda n: str(n["NodeID"]))
        alive = [n for n in known if n["Alive"] and n["NodeID"] not in self._gone]
        names = [n["NodeName"] for n in alive]
        return [(n, n["NodeName"] if names.count(n["NodeName"]) == 1 else _short(n)) for n in alive]

    def _require_head(self) -> None:
        """Ray would wait a minute for a head that is gone, and then end the whole process."""
        deadline = time.monotonic() + _HEAD_S
        while not _listens(*self._head, timeout=1.0):
            if time.monotonic() > deadline:
                raise RunError(
                    f"the head of the Ray cluster ({self._head[0]}:{self._head[1]}) is gone; what "
                    "was made is in the store, and the same command goes on from there"
                )
            time.sleep(_POLL_S)

    def _at(self, node: str) -> Any:
        strategies = require("ray.util.scheduling_strategies", extra="ray", why="--on ray")
        return strategies.NodeAffinitySchedulingStrategy(node, soft=False)

    # -- steps

    def start(self, step: Step, node: Node) -> None:
        needs = step.needs
        options = {
            "num_cpus": node.cpus if needs.alone else needs.cpus,
            "num_gpus": node.gpus if needs.alone else needs.gpus,
            "memory": needs.memory or None,
            "scheduling_strategy": self._at(node.id),
            "name": step.title,
        }
        reference = self._remote.options(**options).remote(step.kind, dict(step.work))
        self._running[reference] = (step, node)

    def wait(self) -> Sequence[Event]:
        if not self._running:
            time.sleep(_POLL_S)
            return []
        done, _ = self._ray.wait([*self._running], timeout=_POLL_S)
        return [self._event(*self._running.pop(reference), reference) for reference in done]

    def _event(self, step: Step, node: Node, reference: Any) -> Event:
        errors = self._ray.exceptions
        gone = (
            errors.NodeDiedError,
            errors.LocalRayletDiedError,
            errors.TaskUnschedulableError,
            errors.ObjectLostError,
        )
        try:
            result, error = self._ray.get(reference)
        except gone:
            self._gone.add(node.id)
            self._log(f"node {node.name} is gone: {step.title} runs again elsewhere")
            return Event(step=step.id, lost=True)
        except errors.WorkerCrashedError:
            self._log(f"node {node.name}: a worker was killed: {step.title} runs again")
            return Event(step=step.id, lost=True)
        except errors.OutOfMemoryError:
            text = f"{step.title}: killed, because node {node.name} ran out of memory"
            return Event(step=step.id, error=RunError(text))
        except errors.RayTaskError as bug:
            return Event(step=step.id, error=bug)
        return Event(step=step.id, result=result, error=error)

    def news(self) -> str:
        return ", ".join(step.title for step, _ in self._running.values())

    def stop(self) -> None:
        """Cancel what runs: gently, so that it cleans up, and then by force."""
        waiting = [*self._running]
        for force in (False, True):
            for reference in waiting:
                with suppress(self._ray.exceptions.RayError, ValueError):
                    self._ray.cancel(reference, force=force)
            if waiting and _listens(*self._head, timeout=1.0):
                _, waiting = self._ray.wait(
                    waiting, num_returns=len(waiting), timeout=_CANCEL_S if not force else 1.0
                )
        self._running.clear()


def _attempt(
    kind: str, work: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, SpectoolError | None]:
    """In a worker: a failure that a person can act on is a result; only a bug is raised."""
    try:
        return run_step(kind, work), None
    except SpectoolError as error:
        return None, error


def _capacity(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    resources = found["Resources"]
    return {
        "id": found["NodeID"],
        "name": name,
        "cpus": float(resources.get("CPU", 0)),
        "memory": int(resources.get("memory", 0)),
        "gpus": int(resources.get("GPU", 0)),
    }


def _labels(found: Mapping[str, Any]) -> dict[str, str]:
    labels: Mapping[str, str] = found.get("Labels") or {}
    return {k.removeprefix(PREFIX): v for k, v in labels.items() if k.startswith(PREFIX)}


def _short(found: Mapping[str, Any]) -> str:
    return f"{found['NodeName']}/{found['NodeID'][:6]}"


def _require_listener(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"--on ray:{host}:{port}: no answer: {reason}; is the cluster's head running there?"
        ) from None


def _listens(host: str, port: int, *, timeout: float) -> bool:
    try:
        socket.create_connection((host, port), timeout=timeout).close()
    except OSError:
        return False
    return True


def _line(error: BaseException) -> str:
    """The first line that says something."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
