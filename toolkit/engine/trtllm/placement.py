"""Which GPUs and which processes run the engines of a deployment, and what cannot be so.

leader        MPI ranks of one engine, every rank a tritonserver: world size = ranks
spawn         one tritonserver; the backend starts a worker for every rank of every engine
participants  MPI starts the workers: rank 0 is Triton, then one rank for each rank of an engine
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from toolkit.engine.trtllm.command import engine_flags, release_of
from toolkit.engine.trtllm.triton_parameters import GUIDED, parameter_problems
from toolkit.recipe.schema import Recipe
from toolkit.recipe.serving import EngineServing
from toolkit.speculation.tensorrt import EXTERNAL, MODE

Problem = tuple[tuple[str | int, ...], str]
_WHERE = ("serve", "tensorrt")


@dataclass(frozen=True)
class Placement:
    """Where everything runs."""

    processes: str
    gpus: Mapping[str, tuple[int, ...]]  # role -> the GPU of each of its ranks
    participants: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # role -> MPI ranks

    @property
    def world_size(self) -> int:
        """Processes that mpirun starts."""
        if self.processes == "leader":
            return sum(map(len, self.gpus.values()))
        return 1 + sum(map(len, self.participants.values()))

    @property
    def all_gpus(self) -> tuple[int, ...]:
        return tuple(sorted({gpu for gpus in self.gpus.values() for gpu in gpus}))

    @property
    def shared(self) -> bool:
        """Whether some GPU holds two engines."""
        return len(self.all_gpus) < sum(map(len, self.gpus.values()))


def placement(recipe: Recipe) -> Placement:
    """As serve.tensorrt says, or by its defaults."""
    serve = recipe.serve.tensorrt
    gpus: dict[str, tuple[int, ...]] = {}
    for role in recipe.models():
        first = 0
        if serve.placement == "separate" and gpus:
            first = 1 + max(gpu for taken in gpus.values() for gpu in taken)
        chosen = serve.engine(role).gpus
        gpus[role] = chosen or tuple(range(first, first + ranks(recipe, role)))
    processes = serve.processes or _default_processes(recipe)
    return Placement(processes, gpus, _participants(recipe) if processes == "participants" else {})


def ranks(recipe: Recipe, role: str) -> int:
    parallel = recipe.models()[role].parallel
    return parallel.tp * parallel.pp


def external(recipe: Recipe) -> bool:
    """Whether the target verifies drafts that come with each request."""
    return engine_flags(recipe, "target").get(MODE) == EXTERNAL


def serve_problems(recipe: Recipe) -> Iterator[Problem]:
    """What is wrong with serve.tensorrt, from the recipe alone."""
    serve, models = recipe.serve.tensorrt, recipe.models()
    if serve.processes == "leader" and len(models) > 1:
        yield (
            (*_WHERE, "processes"),
            f"leader runs one engine, here are {len(models)} ({', '.join(models)}): use spawn or "
            "participants",
        )
    yield from _fast_logits(recipe)
    for role in models:
        yield from _gpus(recipe, role)
    if serve.draft != EngineServing() and "draft" not in models:
        yield (*_WHERE, "draft"), "this recipe has no draft engine; remove it"
    if external(recipe):
        yield from _external(recipe)
    yield from _guided(recipe)
    for name, problem in parameter_problems(serve.parameters, release_of(recipe)):
        yield (*_WHERE, "parameters", name), problem


def _guided(recipe: Recipe) -> Iterator[Problem]:
    where = (*_WHERE, "guided_decoding")
    if recipe.serve.tensorrt.guided_decoding is None:
        return
    if release_of(recipe) < GUIDED:
        yield where, f"came with TensorRT-LLM {'.'.join(map(str, GUIDED))}; remove it"
    if external(recipe):
        yield (
            where,
            f"drafter {recipe.speculation.drafter!r} calls the engines anew for every step, and an "
            "engine begins its grammar anew with every call; remove it, or draft inside the engine",
        )


def _default_processes(recipe: Recipe) -> str:
    if recipe.serve.tensorrt.fast_logits:
        return "participants"
    return "leader" if len(recipe.models()) == 1 else "spawn"


def _participants(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    first, found = 1, {}  # rank 0 is Triton itself
    for role in recipe.models():
        found[role] = tuple(range(first, first + ranks(recipe, role)))
        first += ranks(recipe, role)
    return found


def _fast_logits(recipe: Recipe) -> Iterator[Problem]:
    serve, where = recipe.serve.tensorrt, (*_WHERE, "fast_logits")
    if not serve.fast_logits:
        return
    if not getattr(recipe.speculation, "use_draft_logits", False):
        yield (
            where,
            "there are no draft logits to hand over; set speculation.use_draft_logits: true",
        )
    if serve.processes not in (None, "participants"):
        yield (
            where,
            f"the backend switches it off with processes: {serve.processes}; use participants",
        )


def _gpus(recipe: Recipe, role: str) -> Iterator[Problem]:
    chosen, wanted = recipe.serve.tensorrt.engine(role).gpus, ranks(recipe, role)
    where = (*_WHERE, role, "gpus")
    if chosen is None:
        return
    if len(chosen) != wanted:
        yield where, f"{len(chosen)} GPU(s) for an engine of {wanted} rank(s) (tp x pp)"
    if len(set(chosen)) != len(chosen):
        yield where, f"{list(chosen)}: each rank needs a GPU of its own"


def _external(recipe: Recipe) -> Iterator[Problem]:
    serve, drafter = recipe.serve.tensorrt, recipe.speculation.drafter
    if serve.enable_kv_cache_reuse is False:
        yield (
            (*_WHERE, "enable_kv_cache_reuse"),
            f"false, but {drafter} sends the whole text with every step: without reuse each step "
            "reads it again; remove it",
        )
    if serve.decoupled:
        yield (
            (*_WHERE, "decoupled"),
            "true, but the BLS model asks the engines for one response a step and streams itself; "
            "remove it",
        )
    if serve.batching_strategy == "v1":
        yield (
            (*_WHERE, "batching_strategy"),
            f"v1 cannot verify the drafts of {drafter}; use inflight_fused_batching",
        )
