"""What `tune` adds to the graph of a recipe: traces, step times, and the points to measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit.graph.step import Graph, Needs, Step
from toolkit.plan import Plan
from toolkit.recipe.schema import Recipe
from toolkit.registry import BACKENDS
from toolkit.steps import step_ids
from toolkit.store import digest
from toolkit.tuning.setup import untraceable, untunable


def with_tuning(graph: Graph, plans: Sequence[Plan]) -> Graph:
    """The graph and, behind its engines, the steps that find the draft length which pays."""
    added = {step.id: step for plan in plans for step in tuning_steps(plan)}
    return Graph([*graph, *added.values()])


def tuning_steps(plan: Plan) -> Iterator[Step]:
    """A trace per prompt set, one table of step times, and a step per point to confirm.

    Where there is no trace, every point is measured and nothing is predicted. A point
    is one batch size on one prompt set; `tune` measures it in rounds, which may run anywhere.
    """
    recipe, tune = plan.recipe, plan.recipe.tune
    if untunable(recipe):
        return
    wanted = tuple(
        name
        for artefact, name in zip(plan.artefacts, step_ids(plan), strict=True)
        if artefact.kind in ("engines", "tokenizers")
    )
    options = recipe.speculation.model_dump(mode="json", exclude={"max_draft_len", "draft_length"})
    key = digest({"engines": wanted, "drafter": options, "tune": tune.model_dump(mode="json")})[:12]
    title = f"{recipe.name}: {recipe.speculation.drafter}"
    before = wanted
    if untraceable(recipe) is None:
        traces = {domain: f"trace/{key}/{domain}" for domain in tune.prompts}
        for domain, name in traces.items():
            yield Step(
                id=name,
                kind="trace",
                title=f"{title}: trace {domain}",
                inputs=wanted,
                outputs=(f"outputs of {domain}",),
                needs=_needs(recipe),
            )
        times = f"step_times/{key}"
        yield Step(
            id=times,
            kind="step_times",
            title=f"{title}: step times",
            inputs=(*wanted, *traces.values()),  # their lengths are the contexts that are timed
            outputs=("step-times.json",),
            needs=_needs(recipe),
        )
        before = (*wanted, times)
    for batch in tune.batch:
        for domain in tune.prompts:
            yield Step(
                id=f"point/{key}/{batch}/{domain}",
                kind="point",
                title=f"{title}: measure batch {batch}, {domain}",
                inputs=before,
                outputs=("journal.jsonl",),
                needs=_needs(recipe),
            )


def _needs(recipe: Recipe) -> Needs:
    """The machine that the engines were built on, or one like it, alone: they use all of it."""
    backend = BACKENDS[recipe.backend]
    gpus = max(backend.gpus(recipe, role) for role in recipe.models())
    return Needs(gpus=gpus, alone=True, labels=dict(backend.builder(recipe)))
