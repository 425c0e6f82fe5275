"""A way to run a repository that the wheel's server cannot: NVIDIA's here, or in a container."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from toolkit.errors import MissingDependencyError, RunError
from toolkit.serving.deploy.bundle import Bundle
from toolkit.serving.deploy.docker import build_command, run_command, write_context
from toolkit.serving.launch_script import SCRIPT
from toolkit.serving.server import Address


def launch_here(bundle: Bundle) -> list[str] | None:
    """launch.sh, where the server that it starts is installed with what the models need."""
    recipe = bundle.recipe
    if recipe.backend == "tensorrt":
        server = Path(recipe.serve.tensorrt.tritonserver)
        there = (server.parent.parent / "backends/tensorrtllm").is_dir()
    elif recipe.backend == "pytorch":
        server = Path(recipe.serve.pytorch.tritonserver)
        there = find_spec("tensorrt_llm") is not None
    else:
        return None  # the wheel has everything
    if not (there and os.access(server, os.X_OK)):
        return None
    return ["/bin/sh", str(bundle.repository / SCRIPT)]


@contextmanager
def in_container(bundle: Bundle, address: Address) -> Iterator[list[str]]:
    """The command that runs it, its image built; afterwards the container is gone."""
    if shutil.which("docker") is None:
        raise MissingDependencyError("--docker: no docker on PATH")
    container = f"spectool-{bundle.name}-{secrets.token_hex(4)}"
    command = run_command(bundle, address, container)
    context = bundle.repository.parent / f".{bundle.repository.name}.docker-{os.getpid()}"
    try:
        write_context(bundle, context)
        _run(build_command(bundle, context))
    finally:
        shutil.rmtree(context, ignore_errors=True)
    try:
        yield command
    finally:
        remove = ["docker", "rm", "--force", container]
        subprocess.run(remove, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = "\n".join(f"  {line}" for line in (done.stderr or done.stdout).splitlines()[-8:])
        raise RunError(f"{' '.join(command[:2])} failed with exit code {done.returncode}\n{last}")
