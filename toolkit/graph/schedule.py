"""Which step runs next, and where: the longest way to the end first, on the node it fits best.

Pure decisions without a clock: the local executor, the Ray executor and the simulation in bench/
all ask this code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toolkit.engine.trtllm.machine import same_release
from toolkit.errors import InputError, RunError
from toolkit.graph.step import Graph, Needs, Step

MAX_LOST = 3  # nodes that a step may take down before it is suspected of doing so


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine, or a share of one: what it has in all, free or not."""

    id: str
    name: str
    cpus: float
    memory: int = 1 << 62  # bytes
    gpus: int = 0
    labels: Mapping[str, str] | None = None  # None: the graph was made for this very machine
    paths: frozenset[str] | None = None  # what it sees of the paths asked for; None: everything
    probed: bool = True  # False: what its labels do not say is not known yet, and may do


@dataclass
class _Free:
    """What of a node nobody uses, and what of that is kept for a step that waits for more."""

    node: Node
    cpus: float
    memory: int
    gpus: int
    kept: set[str] = field(default_factory=set)  # names of resources

    def lacks(self, needs: Needs) -> set[str]:
        """The resources of which too little is free."""
        asked = _asked(needs, self.node)
        return {name for name, amount in asked.items() if amount > getattr(self, name)}

    def blocked(self, needs: Needs) -> bool:
        asked = _asked(needs, self.node)
        return bool(self.lacks(needs)) or any(asked[name] for name in self.kept)

    def take(self, needs: Needs, sign: int = 1) -> None:
        asked = _asked(needs, self.node)
        self.cpus -= sign * asked["cpus"]
        self.memory -= sign * int(asked["memory"])
        self.gpus -= sign * int(asked["gpus"])


def _asked(needs: Needs, node: Node) -> dict[str, float]:
    """The amounts that a step takes on this node; one that runs alone takes all of it."""
    if needs.alone:
        return {"cpus": node.cpus, "memory": needs.memory, "gpus": node.gpus}
    return {"cpus": needs.cpus, "memory": needs.memory, "gpus": needs.gpus}


class Schedule:
    """The state of one run over a graph. Nodes may come and go between two calls."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._done = {step.id for step in graph if step.done}
        self._running: dict[str, Node] = {}
        self._lost: dict[str, int] = {}
        self._fit: dict[tuple[tuple[object, ...], str], bool] = {}
        # First what most waits for; as the graph has them where that says nothing.
        self._order = sorted(graph.steps, key=lambda name: -graph.tails[name])

    @property
    def over(self) -> bool:
        return len(self._done) == len(self.graph)

    @property
    def running(self) -> Mapping[str, Node]:
        """Step -> where it runs."""
        return self._running

    def start(self, nodes: Sequence[Node]) -> list[tuple[Step, Node]]:
        """What starts now, counted as running from here on."""
        free = self._free(nodes)
        started = []
        stuck: set[tuple[object, ...]] = set()  # needs for which nothing is free in this call
        for step in self._ready():
            if step.needs.key in stuck:
                continue
            fitting = [here for here in free if self._fits(step.needs, here.node)]
            place = min(
                (here for here in fitting if not here.blocked(step.needs)),
                key=lambda here: _preference(here, step.needs),
                default=None,
            )
            if place is None:
                _keep(step.needs, fitting)
                stuck.add(step.needs.key)
                continue
            place.take(step.needs)
            self._running[step.id] = place.node
            started.append((step, place.node))
        return started

    def finish(self, step: str) -> None:
        """Its outputs are there."""
        del self._running[step]
        self._done.add(step)

    def lost(self, step: str) -> None:
        """Its node went away, which is no fault of the step unless it happens again and again."""
        node = self._running.pop(step)
        self._lost[step] = self._lost.get(step, 0) + 1
        if self._lost[step] >= MAX_LOST:
            raise RunError(
                f"{self.graph.steps[step].title}: its node was lost {MAX_LOST} times, last "
                f"{node.name}; does it need more memory than the nodes have?"
            )

    def refuse_impossible(self, nodes: Sequence[Node]) -> None:
        """Name, all at once, the steps that no node could ever run."""
        waiting = [s for s in self.graph if s.id not in self._done and s.id not in self._running]
        problems = dict.fromkeys(impossible(waiting, nodes))
        if problems:
            raise InputError("no node can run this:\n" + "\n".join(f"  {p}" for p in problems))

    def _fits(self, needs: Needs, node: Node) -> bool:
        """Whether the idle node would do; a node never changes, so it is asked once."""
        place = (needs.key, node.id)
        if place not in self._fit:
            self._fit[place] = why_not(needs, node) is None
        return self._fit[place]

    def _ready(self) -> Iterator[Step]:
        for name in self._order:
            if name in self._done or name in self._running:
                continue
            step = self.graph.steps[name]
            if self._done.issuperset(step.inputs):
                yield step

    def _free(self, nodes: Sequence[Node]) -> list[_Free]:
        free = {node.id: _Free(node, node.cpus, node.memory, node.gpus) for node in nodes}
        for name, node in self._running.items():
            if node.id in free:
                free[node.id].take(self.graph.steps[name].needs)
        return list(free.values())


def _preference(here: _Free, needs: Needs) -> tuple[float, float]:
    """Leave GPUs to those who need them and whole nodes to large steps; spread the rest."""
    return (here.gpus, -here.cpus) if needs.gpus else (here.node.gpus, -here.cpus)


def _keep(needs: Needs, fitting: Sequence[_Free]) -> None:
    """Keep what becomes free on one node for a step that waits, or small ones starve it."""
    candidates = [here for here in fitting if not here.kept]
    if candidates:
        nearest = min(candidates, key=lambda here: (len(here.lacks(needs)), -here.gpus, -here.cpus))
        nearest.kept |= nearest.lacks(needs)


def why_not(needs: Needs, node: Node) -> str | None:
    """What the node lacks even when it is idle; None: it can run the step."""
    for name, wanted in needs.labels.items():
        found = wanted if node.labels is None else node.labels.get(name)
        if found is None and not node.probed:
            continue
        if found is None or not same_release(wanted, found):
            return f"{name} {found or 'none'}"
    for name, amount in _asked(needs, node).items():
        if amount > getattr(node, name):
            return f"{_amount(name, getattr(node, name))}"
    unseen = [path for path in needs.paths if node.paths is not None and path not in node.paths]
    return f"no {unseen[0]}" if unseen else None


def impossible(steps: Collection[Step], nodes: Sequence[Node]) -> Iterator[str]:
    """A sentence for each step that fits no node: what it needs, what there is."""
    if steps and not nodes:
        yield "there is no node left"
        return
    for step in steps:
        reasons = {node.name: why_not(step.needs, node) for node in nodes}
        if all(reasons.values()):
            found = dict.fromkeys(f"{name} has {reason}" for name, reason in reasons.items())
            shown = [*list(found)[:4], *(["..."] if len(found) > 4 else [])]
            yield f"{step.title} needs {describe(step.needs)}; {', '.join(shown)}"


def describe(needs: Needs) -> str:
    """`1 CPU, 2 GPUs, gpu sm_90`."""
    words = ["a node to itself"] if needs.alone else []
    words += [_amount("cpus", needs.cpus)] if needs.cpus and not needs.alone else []
    words += [_amount("memory", needs.memory)] if needs.memory else []
    words += [_amount("gpus", needs.gpus)] if needs.gpus else []
    words += [f"{name} {value}" for name, value in needs.labels.items()]
    return ", ".join([*words, *needs.paths]) or "nothing"


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / 1e9:.1f} GB of memory"
    unit = {"cpus": "CPU", "gpus": "GPU"}[name]
    return f"{amount:g} {unit}{'' if amount == 1 else 's'}"
