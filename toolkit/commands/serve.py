"""`spectool serve`: a real Triton server on a model repository."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.options import Json

if TYPE_CHECKING:
    from toolkit.errors import MissingDependencyError
    from toolkit.serving.client import Answer
    from toolkit.serving.deploy.bundle import Bundle
    from toolkit.serving.reload import Watcher
    from toolkit.serving.server import Address, TritonServer

_Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Default: the recipe's.")]


def serve(
    repository: Annotated[Path, typer.Argument(metavar="DIR", help="Model repository.")],
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on; default: the recipe's.")
    ] = None,
    http_port: _Port = None,
    grpc_port: _Port = None,
    metrics_port: _Port = None,
    log: Annotated[
        bool, typer.Option("--log", help="Show the server's own log on stderr.")
    ] = False,
    log_file: Annotated[
        Path | None, typer.Option("--log-file", metavar="FILE", help="Keep the server's log here.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Seconds to wait until it is ready.")
    ] = 300.0,
    check: Annotated[
        bool, typer.Option("--check", help="Start, answer one request, stop.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Load what `spectool repo` writes anew, requests going on."),
    ] = False,
    docker: Annotated[
        bool, typer.Option("--docker", help="In a container, built on the release's image.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start Triton on a model repository; Ctrl-C stops it.

    With --watch a rebuilt repository is brought into the running server: requests at work finish
    on the old models, new ones go to the new, and a model that does not load changes nothing.
    """
    from toolkit.progress import progress
    from toolkit.serving import shared_memory
    from toolkit.serving.lint import lint, raise_errors
    from toolkit.serving.lint.machine import check_machine
    from toolkit.serving.lint.repository import read_repository
    from toolkit.serving.reload import Watcher
    from toolkit.serving.repository import repository_manifest
    from toolkit.serving.server import TritonServer
    from toolkit.serving.smoke import smoke

    raise_errors(repository, lint(repository))
    raise_errors(repository, list(check_machine(repository)))
    manifest = repository_manifest(repository) or {}
    address = _address(manifest, host, http_port, grpc_port, metrics_port)
    if warning := shared_memory.warning():
        typer.echo(f"warning: {warning}", err=True)
    models = list(read_repository(repository)[0].models)
    entry = manifest.get("entry")
    with (
        _stopped_by_signals(),
        _command(repository, manifest, address, docker) as command,
        progress("starting Triton", len(models)) as bar,
    ):
        server = TritonServer(
            repository.absolute(),
            models,
            address,
            log=log_file,
            timeout_s=timeout,
            show_log=log,
            explicit=watch,
            on_ready=lambda model: bar.advance(),
            command=command,
            flags=_flags(manifest),
        )
        watcher = Watcher(server) if watch else None
        with server:
            answer = smoke(address, entry, manifest.get("layout")) if entry else None
            try:
                _say(server, entry, answer, as_json)
                if not check:
                    typer.echo("Ctrl-C stops it", err=True)
                    _wait(server, watcher)
            except KeyboardInterrupt:  # as soon as anybody knows that it runs
                print("stopping", file=sys.stderr)
    if not as_json:
        print("stopped")


@contextmanager
def _command(
    repository: Path, manifest: dict[str, Any], address: Address, docker: bool
) -> Iterator[list[str] | None]:
    """What to start; None: the wheel's server. MissingDependencyError shows what would do."""
    from toolkit.errors import InputError
    from toolkit.serving.deploy.bundle import open_bundle
    from toolkit.serving.deploy.local import in_container, launch_here
    from toolkit.serving.server import Address

    if not manifest:
        if docker:
            raise InputError(f"{repository}: --docker needs a repository that spectool wrote")
        _refuse_engines(repository)
        yield None
        return
    bundle = open_bundle(repository)
    if docker:
        with in_container(bundle, address) as command:
            yield command
        return
    command_here = launch_here(bundle)
    if command_here is None and bundle.recipe.backend != "cpu":
        raise _nothing_runs_it(bundle)
    if command_here and address.ports() != Address(*_said(manifest)).ports():
        raise InputError(
            f"{repository}: its launch.sh listens on the recipe's ports; for others write it again "
            "with --set serve.http_port=..."
        )
    yield command_here


def _nothing_runs_it(bundle: Bundle) -> MissingDependencyError:
    """Both ways out, as commands that can be pasted."""
    import shlex

    from toolkit.errors import MissingDependencyError
    from toolkit.serving.deploy.docker import build_command, run_command
    from toolkit.serving.deploy.images import image_of
    from toolkit.serving.layouts import layout_of
    from toolkit.serving.server import Address

    recipe, serve = bundle.recipe, bundle.recipe.serve
    address = Address(serve.host, serve.http_port, serve.grpc_port, serve.metrics_port)
    run = shlex.join(run_command(bundle, address, bundle.name))
    return MissingDependencyError(
        f"{bundle.repository}: it needs Triton with {layout_of(recipe).needs}, which is not here\n"
        f"in a container ({image_of(recipe)}): spectool serve --docker "
        f"{shlex.quote(str(bundle.repository))}\n"
        f"by hand: spectool deploy {shlex.quote(str(bundle.repository))} -o deployment && "
        f"{shlex.join(build_command(bundle, Path('deployment')))} && {run}"
    )


def _refuse_engines(repository: Path) -> None:
    """Other people's repositories run on the wheel's server, unless they have engines."""
    from toolkit.errors import MissingDependencyError
    from toolkit.serving.lint.repository import BACKEND, read_repository

    if any(model.config.backend == BACKEND for model in read_repository(repository)[0].parsed):
        raise MissingDependencyError(
            f"{repository}: its engines need Triton's backend {BACKEND}, which the tritonserver "
            "of nvidia-pytriton lacks; run it in NVIDIA's tritonserver container for TensorRT-LLM "
            "(trtllm-python-py3)"
        )


def _flags(manifest: dict[str, Any]) -> list[str]:
    from toolkit.recipe.schema import Recipe
    from toolkit.serving.traces import trace_flags

    return trace_flags(Recipe.model_validate(manifest["recipe"])) if manifest else []


def _address(manifest: dict[str, Any], host: str | None, *ports: int | None) -> Address:
    """Options first, then what the recipe says."""
    from toolkit.serving.server import Address

    said_host, *wanted = _said(manifest)
    chosen = [given or default for given, default in zip(ports, wanted, strict=True)]
    return Address(host or said_host, *chosen)


def _said(manifest: dict[str, Any]) -> tuple[str, int, int, int]:
    from toolkit.recipe.serving import Serve

    recipe = Serve.model_validate(manifest.get("recipe", {}).get("serve", {}))
    return recipe.host, recipe.http_port, recipe.grpc_port, recipe.metrics_port


def _say(server: TritonServer, entry: str | None, answer: Answer | None, as_json: bool) -> None:
    import json

    from toolkit.serving.smoke import PROMPT

    address = server.address
    if as_json:
        document = {
            "pid": server.pid,
            "http": address.http,
            "grpc": address.grpc,
            "metrics": address.metrics,
            "models": list(server.models),
            "entry": entry,
            "smoke": answer.text if answer else None,
        }
        print(json.dumps(document), flush=True)
        return
    print(f"ready: {', '.join(server.models)}")
    print(f"HTTP     {address.http}/v2/models/{entry or 'MODEL'}/generate")
    print(f"stream   {address.http}/v2/models/{entry or 'MODEL'}/generate_stream")
    print(f"gRPC     {address.grpc}")
    print(f"metrics  {address.metrics}")
    if answer is not None:
        print(f"smoke    {PROMPT!r} -> {answer.text!r}")
        request = f'{{"text_input": "{PROMPT}", "max_tokens": 32, "stream": true}}'
        print(f"try      curl -N {address.http}/v2/models/{entry}/generate_stream -d '{request}'")
    sys.stdout.flush()


def _wait(server: TritonServer, watcher: Watcher | None) -> None:
    """Until the server ends by itself."""
    from toolkit.errors import RunError

    while (code := server.poll()) is None:
        time.sleep(0.5)
        if watcher is not None:
            _reload(watcher)
    raise RunError(server.failure(f"tritonserver ended by itself with exit code {code}"))


def _reload(watcher: Watcher) -> None:
    """What is wrong with a rebuilt repository is said, and the server goes on with the old one."""
    from toolkit.errors import SpectoolError

    try:
        if (found := watcher.poll()) is None:
            return
    except SpectoolError as error:
        typer.echo(f"not reloaded: {error}", err=True)
        return
    changes = [("loaded", found.loaded), ("unloaded", found.unloaded)]
    said = "; ".join(f"{what} {', '.join(models)}" for what, models in changes if models)
    typer.echo(f"repository rebuilt: {said or 'no model changed'}", err=True)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM works like Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
