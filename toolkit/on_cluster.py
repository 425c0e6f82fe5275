"""Carry plans out on a cluster: ask its machines, plan for them, send them the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from tempfile import NamedTemporaryFile
from typing import Any

from toolkit.engine.built import BuiltModels
from toolkit.engine.trtllm.machine import same_release
from toolkit.errors import InputError
from toolkit.execute import Made, fetch, run_builds
from toolkit.expected import expectation
from toolkit.graph.cluster import Cluster, connect
from toolkit.graph.probe import labels_here
from toolkit.graph.schedule import Node, Schedule
from toolkit.graph.where import parse_on
from toolkit.plan import Plan, make_plan
from toolkit.recipe.schema import Recipe
from toolkit.registry import BACKENDS
from toolkit.steps import build_graph
from toolkit.store import Store, digest


@contextmanager
def cluster_for(
    on: str, plans: Sequence[Plan], store: Store, log: Callable[[str], None]
) -> Iterator[tuple[Cluster, list[Node]]]:
    """A cluster whose nodes were asked, after refusing what none of them could ever run."""
    wanted = build_graph([_anywhere(plan) for plan in plans], store, everywhere=labels_here())[0]
    with connect(parse_on(on), log) as cluster:
        Schedule(wanted).refuse_impossible(cluster.offered())
        store.root.mkdir(parents=True, exist_ok=True)
        paths = sorted({path for step in wanted for path in step.needs.paths})
        with NamedTemporaryFile(dir=store.root, prefix=".seen-") as seen:
            nodes = cluster.survey(paths, None if store.url else seen.name)
            Schedule(wanted).refuse_impossible(nodes)
            yield cluster, nodes


def build_on(
    on: str,
    plans: Sequence[Plan],
    store: Store,
    *,
    offline: bool | None = None,
    report: Callable[[Made], None] = lambda made: None,
    log: Callable[[str], None] = lambda line: None,
) -> list[BuiltModels]:
    """`execute.build_all` on the nodes of a cluster that see the same store."""
    with cluster_for(on, plans, store, log) as (cluster, nodes):
        plans = [plan_for(plan.recipe, cluster, nodes, store, offline) for plan in plans]
        return run_builds(
            plans,
            store,
            cluster,
            offline=offline,
            report=report,
            seconds=expectation(store.entries()),
            everywhere=labels_here(),
            bring=not store.url,
        )


def plan_for(
    recipe: Recipe, cluster: Cluster, nodes: Sequence[Node], store: Store, offline: bool | None
) -> Plan:
    """The plan with every digest known, for the machines that will build it."""
    machine = builder(recipe, [(node, cluster.facts(node)["machines"]) for node in nodes])
    return fetch(make_plan(recipe, store, machine), store, offline=offline, machine=machine)


def builder(
    recipe: Recipe, machines: Sequence[tuple[Node, Mapping[str, Mapping[str, Any]]]]
) -> Mapping[str, Any]:
    """What the backend says of the nodes that may build: of the most, where they differ.

    Of nodes with different GPUs the recipe must name one: their engines are different engines.
    """
    backend = BACKENDS[recipe.backend]
    asked = backend.builder(recipe).items()
    groups: dict[str, tuple[Mapping[str, Any], list[Node]]] = {}
    for node, said in machines:
        machine, labels = said[recipe.backend], node.labels or {}
        if machine and all(same_release(value, labels.get(name, "")) for name, value in asked):
            groups.setdefault(digest(machine), (machine, []))[1].append(node)
    gpus = {machine["gpu"]: nodes[0].name for machine, nodes in groups.values() if "gpu" in machine}
    if len(gpus) > 1:
        found = " and ".join(f"{gpu} ({name})" for gpu, name in sorted(gpus.items()))
        raise InputError(
            f"{recipe.name}: the cluster has {found}, whose engines differ; say which with "
            "tensorrt.gpu"
        )
    return max(groups.values(), key=lambda group: len(group[1]), default=({}, []))[0]


def _anywhere(plan: Plan) -> Plan:
    """The plan as it stands before a machine is chosen."""
    if not BACKENDS[plan.recipe.backend].machine_keys:
        return plan
    artefacts = tuple(
        replace(a, spec=None, digest=None, cached=False) if a.kind == "engines" else a
        for a in plan.artefacts
    )
    return replace(plan, artefacts=artefacts)
