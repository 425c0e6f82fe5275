"""The command that starts Triton on a repository of engines, and the script that holds it."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.engine.built import BuiltModels
from toolkit.engine.trtllm.placement import Placement, placement
from toolkit.recipe.schema import Recipe
from toolkit.serving.launch_script import HOST, REPOSITORY, SCRIPT, script
from toolkit.serving.llm_names import llm_name
from toolkit.serving.traces import trace_flags


def environment(place: Placement) -> Mapping[str, str]:
    """What the backend reads to know who starts its workers."""
    if place.processes == "leader":
        return {}
    spawn = "1" if place.processes == "spawn" else "0"
    return {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": spawn}


def launch_command(recipe: Recipe, repository: str = REPOSITORY, host: str = HOST) -> list[str]:
    """mpirun and, for each MPI rank, a tritonserver; only rank 0 serves clients."""
    place = placement(recipe)
    words = ["mpirun", "--allow-run-as-root"]
    for rank in range(place.world_size):
        words += ["-n", "1", *_server(recipe, place, rank, repository, host), ":"]
    return words[:-1]


def _server(recipe: Recipe, place: Placement, rank: int, repository: str, host: str) -> list[str]:
    serve = recipe.serve
    words = [serve.tensorrt.tritonserver, f"--model-repository={repository}"]
    if rank:
        # A worker loads its engines only and never gets as far as listening.
        words.append("--model-control-mode=explicit")
        words += [f"--load-model={llm_name(role)}" for role in recipe.models()]
    for protocol in ("http", "grpc", "metrics"):
        words.append(f"--{protocol}-address={host}")
        words.append(f"--{protocol}-port={getattr(serve, f'{protocol}_port')}")
    if place.processes == "spawn":
        # The engines live in processes of their own: Triton itself must not take their memory.
        words += ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
        words += [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in place.all_gpus]
    if not rank:
        words += trace_flags(recipe)
    words.append("--disable-auto-complete-config")
    words.append(f"--backend-config=python,shm-region-prefix-name=prefix{rank}_")
    return words


def launch_script(recipe: Recipe) -> str:
    place = placement(recipe)
    return script(
        describe(place), environment(place), launch_command(recipe), host=recipe.serve.host
    )


def describe(place: Placement) -> str:
    """Processes and GPUs in a few words."""
    gpus = "; ".join(f"{role} on GPU {_numbers(ids)}" for role, ids in place.gpus.items())
    return f"{place.processes}, world size {place.world_size}, {gpus}"


def programs(built: BuiltModels) -> Mapping[str, str]:
    return {SCRIPT: launch_script(built.recipe)}


def _numbers(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids))
