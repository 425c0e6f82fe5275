"""Work as a graph: steps with inputs, outputs and what a machine must have to run them.

A step is data. Its work is a JSON document for the function that its kind names, so any process on
any machine runs the same step, and a plan with its graph can be printed before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

from toolkit.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a node must have, and for as long as the step runs must have free."""

    cpus: float = 1.0
    memory: int = 0  # bytes
    gpus: int = 0
    alone: bool = False  # nothing else may run beside it: it measures times
    labels: Mapping[str, str] = field(default_factory=dict)  # gpu, tensorrt_llm, python, ...
    paths: tuple[str, ...] = ()  # files and directories that the node must see

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for needs that are alike."""
        labels = tuple(sorted(self.labels.items()))
        return (self.cpus, self.memory, self.gpus, self.alone, labels, self.paths)

    def to_json(self) -> dict[str, Any]:
        return {
            "cpus": self.cpus,
            "memory_bytes": self.memory,
            "gpus": self.gpus,
            "alone": self.alone,
            "labels": dict(self.labels),
            "paths": list(self.paths),
        }


@dataclass(frozen=True, kw_only=True)
class Step:
    """One piece of work: after its inputs, anywhere that its needs are met."""

    id: str
    kind: str  # a name in graph.work.WORK
    title: str  # for people
    inputs: tuple[str, ...] = ()  # ids of steps
    outputs: tuple[str, ...] = ()  # places in the store, or files of the results directory
    needs: Needs = field(default_factory=Needs)
    work: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 1.0  # how long it is expected to take; decides only what goes first
    done: bool = False  # its outputs are there already

    def to_json(self) -> dict[str, Any]:
        """For people and programs that look at the plan; without the work's own document."""
        return {
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "needs": self.needs.to_json(),
            "expected_seconds": round(self.seconds, 3),
            "done": self.done,
        }


class Graph:
    """Steps by id, inputs before what needs them; a cycle or an unknown input is refused."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = {step.id: step for step in steps}
        problems = [
            f"{step.id}: its input {wanted} is no step"
            for step in steps
            for wanted in step.inputs
            if wanted not in self.steps
        ]
        if len(self.steps) < len(steps):
            problems.append("two steps have one id")
        if problems:
            raise InputError("the steps are no graph: " + "; ".join(problems))
        try:
            self.order = tuple(
                TopologicalSorter({step.id: step.inputs for step in steps}).static_order()
            )
        except CycleError as error:
            raise InputError(
                f"the steps wait for each other in a circle: {' -> '.join(error.args[1])}"
            ) from None

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps.values())

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """Step -> the steps that need it."""
        found: dict[str, list[str]] = {name: [] for name in self.steps}
        for step in self:
            for wanted in step.inputs:
                found[wanted].append(step.id)
        return {name: tuple(users) for name, users in found.items()}

    @cached_property
    def tails(self) -> Mapping[str, float]:
        """Step -> expected seconds of the longest way from its start to the end of everything."""
        found: dict[str, float] = {}
        for name in reversed(self.order):
            after = max((found[user] for user in self.users[name]), default=0.0)
            step = self.steps[name]
            found[name] = after + (0.0 if step.done else step.seconds)
        return found

    @property
    def critical_path(self) -> float:
        """Expected seconds that no number of machines can beat."""
        return max(self.tails.values(), default=0.0)
