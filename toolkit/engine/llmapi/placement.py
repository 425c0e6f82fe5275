"""Which GPUs and machines serve a deployment of the LLM API behind Triton, and what cannot be so.

one instance       LLM starts a worker for each rank on the GPUs that are visible
several instances  each sees GPUs of its own
several machines   one instance, whose ranks srun starts through trtllm-llmapi-launch
"""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.recipe.schema import Recipe
from toolkit.speculation.llmapi import FieldPath

_WHERE = ("serve", "pytorch")


def ranks(recipe: Recipe) -> int:
    """Processes of one instance, each with a GPU."""
    parallel = recipe.target.parallel
    return parallel.tp * parallel.pp


def instances(recipe: Recipe) -> int:
    return len(recipe.serve.pytorch.gpus or ((),))


def gpu_groups(recipe: Recipe) -> str:
    """`0,1;2,3`: the GPUs of each instance, as Triton's model reads them; "" for all there are."""
    return ";".join(",".join(map(str, group)) for group in recipe.serve.pytorch.gpus or ())


def placement_problems(recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
    """What is wrong with serve.pytorch, from the recipe alone."""
    serve, wanted = recipe.serve.pytorch, ranks(recipe)
    groups = serve.gpus or ()
    for number, group in enumerate(groups):
        if len(group) != wanted:
            yield (
                (*_WHERE, "gpus", number),
                f"{len(group)} GPU(s) for an instance of {wanted} rank(s) (tp x pp)",
            )
    every = [gpu for group in groups for gpu in group]
    if len(set(every)) != len(every):
        yield (*_WHERE, "gpus"), f"{[list(g) for g in groups]}: each rank needs a GPU of its own"
    if serve.nodes > 1 and groups:
        yield (*_WHERE, "gpus"), "several machines serve one instance on all their GPUs; remove it"
    if wanted % serve.nodes:
        yield (
            (*_WHERE, "nodes"),
            f"{serve.nodes} do not divide the target's {wanted} rank(s) (tp x pp) evenly",
        )
