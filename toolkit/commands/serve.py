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
    from toolkit.serving.client import Answer
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
    as_json: Json = False,
) -> None:
    """Start Triton on a model repository; Ctrl-C stops it.

    With --watch a rebuilt repository is brought into the running server: requests at work finish
    on the old models, new ones go to the new, and a model that does not load changes nothing.
    """
    from toolkit.errors import MissingDependencyError
    from toolkit.progress import progress
    from toolkit.serving import shared_memory
    from toolkit.serving.launch_script import SCRIPT
    from toolkit.serving.lint import lint, raise_errors
    from toolkit.serving.lint.machine import check_machine
    from toolkit.serving.lint.repository import BACKEND, read_repository
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
    found = read_repository(repository)[0]
    if any(model.config.backend == BACKEND for model in found.parsed):
        raise MissingDependencyError(
            f"{repository}: its engines need Triton's backend {BACKEND}, which the tritonserver "
            f"of nvidia-pytriton lacks; run {repository / SCRIPT} in NVIDIA's tritonserver "
            "container for TensorRT-LLM (trtllm-python-py3)"
        )
    models = list(found.models)
    entry = manifest.get("entry")
    with _stopped_by_signals(), progress("starting Triton", len(models)) as bar:
        server = TritonServer(
            repository.absolute(),
            models,
            address,
            log=log_file,
            timeout_s=timeout,
            show_log=log,
            explicit=watch,
            on_ready=lambda model: bar.advance(),
        )
        watcher = Watcher(server) if watch else None
        with server:
            answer = smoke(address, entry, manifest.get("layout")) if entry else None
            _say(server, entry, answer, as_json)
            if not check:
                typer.echo("Ctrl-C stops it", err=True)
                _wait(server, watcher)
    if not as_json:
        print("stopped")


def _address(manifest: dict[str, Any], host: str | None, *ports: int | None) -> Address:
    """Options first, then what the recipe says."""
    from toolkit.recipe.schema import Serve
    from toolkit.serving.server import Address

    recipe = Serve.model_validate(manifest.get("recipe", {}).get("serve", {}))
    wanted = (recipe.http_port, recipe.grpc_port, recipe.metrics_port)
    chosen = [given or default for given, default in zip(ports, wanted, strict=True)]
    return Address(host or recipe.host, *chosen)


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
    """Until we are told to stop, or the server ends by itself."""
    from toolkit.errors import RunError

    try:
        while (code := server.poll()) is None:
            time.sleep(0.5)
            if watcher is not None:
                _reload(watcher)
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr)
        return
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
