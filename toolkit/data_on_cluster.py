"""Training data from all nodes of a cluster: a step for each shard of the target's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from toolkit.graph.probe import labels_here
from toolkit.graph.run import Ran, run
from toolkit.graph.step import Graph, Needs, Step
from toolkit.on_cluster import build_with, cluster_for
from toolkit.plan import Plan, make_plan
from toolkit.recipe.schema import Recipe
from toolkit.store import Store
from toolkit.training.generate import PASSAGES_BEHIND
from toolkit.training.session import DataOptions, TargetFiles, missing_shards
from toolkit.training.shard_step import shard_work


def data_on(
    on: str,
    plain: Recipe,  # the target alone, for the cpu engine
    options: DataOptions,
    directory: Path,
    store: Store,
    log: Callable[[str], None],
    *,
    offline: bool | None = None,
    threads: int | None = None,
) -> TargetFiles:
    """`session.generate_data` by nodes that see `directory` and the prompts as this one does."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    paths = (str(directory), str(options.prompts.absolute()))
    plan = make_plan(plain, store)
    with cluster_for(on, [plan], store, log, paths=paths) as session:
        built = build_with(session, [plan], store, offline=offline)[0]
        target = target_of(make_plan(plain, store), built.tokenizer_dir, store)
        steps = shard_steps(
            missing_shards(target, options, directory),
            lambda split, number: shard_work(
                target, options, directory, split, number, store, threads
            ),
            paths,
        )

        def say(ran: Ran) -> None:
            log(f"{ran.step.title}: {ran.result['tokens']} tokens ({ran.node})")

        run(Graph(steps), session.cluster, title="training data", report=say)
    return target


def target_of(plan: Plan, tokenizer_dir: Path, store: Store) -> TargetFiles:
    """Where the built target lies, its checkpoint brought here."""
    key = next(str(a.digest) for a in plan.artefacts if a.kind == "checkpoints")
    return TargetFiles(
        checkpoint_digest=key,
        checkpoint_dir=store.fetch("checkpoints", key),
        tokenizer_dir=tokenizer_dir,
    )


def shard_steps(
    todo: Mapping[str, Sequence[int]],
    work: Callable[[str, int], dict[str, object]],
    paths: tuple[str, ...],
) -> list[Step]:
    """Prompts quote answers from some shards before, so a shard waits for that one."""
    needs = Needs(alone=True, labels=labels_here(), paths=paths)
    return [
        Step(
            id=f"{split}/{number}",
            kind="head_data",
            title=f"{split} shard {number}",
            inputs=tuple(
                f"{split}/{earlier}" for earlier in [number - PASSAGES_BEHIND] if earlier in shards
            ),
            outputs=(f"{split}-{number:05d}.safetensors",),
            needs=needs,
            work=work(split, number),
        )
        for split, shards in todo.items()
        for number in shards
    ]
