"""Carry plans out on a cluster: ask its machines, plan for them, send them the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from toolkit.graph.step import Needs
from toolkit.graph.where import parse_on
from toolkit.plan import Plan, make_plan
from toolkit.recipe.schema import Recipe
from toolkit.registry import BACKENDS
from toolkit.steps import build_graph
from toolkit.store import Store, digest
from toolkit.tuning.grid import Grid
from toolkit.tuning.journal import Journal
from toolkit.tuning.rounds import models_work, round_work
from toolkit.tuning.session import Outcome
from toolkit.tuning.spread import measure_on
from toolkit.tuning.tracing import TracingOn


@dataclass(frozen=True)
class Session:
    """A cluster, and its nodes as they answered when it was asked."""

    cluster: Cluster
    nodes: Sequence[Node]


@contextmanager
def cluster_for(
    on: str,
    plans: Sequence[Plan],
    store: Store,
    log: Callable[[str], None],
    *,
    paths: Sequence[str] = (),
) -> Iterator[Session]:
    """A cluster whose nodes were asked, after refusing what none of them could ever run.

    `paths` are what later steps must see besides the models.
    """
    wanted = build_graph([_anywhere(plan) for plan in plans], store, everywhere=labels_here())[0]
    with connect(parse_on(on), log) as cluster:
        Schedule(wanted).refuse_impossible(cluster.offered())
        store.root.mkdir(parents=True, exist_ok=True)
        asked = sorted({*paths, *(path for step in wanted for path in step.needs.paths)})
        with NamedTemporaryFile(dir=store.root, prefix=".seen-") as seen:
            nodes = cluster.survey(asked, None if store.url else seen.name)
            Schedule(wanted).refuse_impossible(nodes)
            yield Session(cluster, nodes)


def build_on(
    on: str,
    plans: Sequence[Plan],
    store: Store,
    *,
    offline: bool | None = None,
    report: Callable[[Made], None] = lambda made: None,
    log: Callable[[str], None] = lambda line: None,
) -> list[BuiltModels]:
    """`execute.build_all` on the nodes of a cluster; engines stay where a shared store is."""
    with cluster_for(on, plans, store, log) as session:
        return build_with(
            session, plans, store, offline=offline, report=report, bring=not store.url
        )


def build_with(
    session: Session,
    plans: Sequence[Plan],
    store: Store,
    *,
    offline: bool | None = None,
    report: Callable[[Made], None] = lambda made: None,
    bring: bool = True,
) -> list[BuiltModels]:
    """The same in a session that goes on."""
    return run_builds(
        [plan_for(plan.recipe, session, store, offline) for plan in plans],
        store,
        session.cluster,
        offline=offline,
        report=report,
        seconds=expectation(store.entries()),
        everywhere=labels_here(),
        bring=bring,
    )


def measured_by(
    session: Session,
    built: BuiltModels,
    store: Store,
    *,
    threads: int | None,
    log: Callable[[str], None],
) -> tuple[Mapping[str, str | int], Callable[[Grid, Journal], Outcome], TracingOn]:
    """The machine that most nodes are, and how those nodes measure a grid's rounds and trace.

    Times of unlike machines are never mixed: the others get no round.
    """
    cluster, backend = session.cluster, BACKENDS[built.recipe.backend]
    machine = cluster.alike("processor")
    built_on = cluster.alike("machines")[built.recipe.backend]
    needs = Needs(
        alone=True,
        gpus=max(backend.gpus(built.recipe, role) for role in built.recipe.models()),
        labels={**labels_here(), **{k: str(v) for k, v in built_on.items() if v is not None}},
    )

    models = models_work(built, store, threads)

    def rounds(grid: Grid, journal: Journal) -> Outcome:
        return measure_on(
            cluster,
            grid,
            journal,
            work=lambda round: round_work(models, grid, round),
            needs=needs,
            log=log,
        )

    return machine, rounds, TracingOn(cluster, built, store, needs, threads, log)


def plan_for(recipe: Recipe, session: Session, store: Store, offline: bool | None) -> Plan:
    """The plan with every digest known, for the machines that will build it."""
    machine = builder(
        recipe, [(node, session.cluster.facts(node)["machines"]) for node in session.nodes]
    )
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
