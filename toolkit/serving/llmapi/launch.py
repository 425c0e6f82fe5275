"""The command that starts Triton on a repository of the LLM API, and the script that holds it."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.engine.built import BuiltModels
from toolkit.engine.llmapi.placement import gpu_groups, instances, ranks
from toolkit.recipe.schema import Recipe
from toolkit.serving.launch_script import HOST, REPOSITORY, SCRIPT, script
from toolkit.serving.traces import trace_flags


def launch_command(recipe: Recipe, repository: str = REPOSITORY, host: str = HOST) -> list[str]:
    """One tritonserver: LLM() starts its own workers, or finds those that srun has started."""
    serve, nodes = recipe.serve, recipe.serve.pytorch.nodes
    words = []
    if nodes > 1:
        each = ranks(recipe) // nodes
        words = ["srun", "--mpi=pmix", f"--nodes={nodes}", f"--ntasks={ranks(recipe)}"]
        words += [f"--ntasks-per-node={each}", "trtllm-llmapi-launch"]
    words += [serve.pytorch.tritonserver, f"--model-repository={repository}"]
    for protocol in ("http", "grpc", "metrics"):
        words.append(f"--{protocol}-address={host}")
        words.append(f"--{protocol}-port={getattr(serve, f'{protocol}_port')}")
    words += trace_flags(recipe)
    # config.pbtxt is whole: what upstream's launcher would complete from model.yaml stands in it.
    words.append("--disable-auto-complete-config")
    return words


def describe(recipe: Recipe) -> str:
    """Processes and GPUs in a few words."""
    count, each, nodes = instances(recipe), ranks(recipe), recipe.serve.pytorch.nodes
    text = f"{count} instance(s) of {each} rank(s)"
    if nodes > 1:
        return f"{text} on {nodes} machines, {each // nodes} GPU(s) each"
    return f"{text} on GPU {gpu_groups(recipe)}" if gpu_groups(recipe) else text


def programs(built: BuiltModels) -> Mapping[str, str]:
    recipe = built.recipe
    return {SCRIPT: script(describe(recipe), {}, launch_command(recipe), host=recipe.serve.host)}
