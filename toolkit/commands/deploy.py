"""`spectool deploy`: docker, compose, Kubernetes and monitoring of a model repository."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import Json


def deploy(
    repository: Annotated[
        Path, typer.Argument(metavar="DIR", help="Model repository that spectool repo wrote.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write it.")],
    registry: Annotated[
        str, typer.Option("--registry", metavar="HOST/PATH", help="Where Kubernetes pulls from.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Write what runs a repository elsewhere, and what watches it there.

    A Dockerfile with its context, compose.yaml (Triton, Prometheus, Grafana), alert rules and a
    dashboard for this repository's metrics, and Kubernetes manifests.
    """
    from toolkit.serving.deploy.bundle import open_bundle
    from toolkit.serving.deploy.docker import build_command, image_name
    from toolkit.serving.deploy.files import KUBERNETES, write_deployment
    from toolkit.serving.deploy.images import image_of
    from toolkit.serving.lint import lint, raise_errors

    bundle = open_bundle(repository)
    raise_errors(repository, lint(repository))
    notes = write_deployment(bundle, out, registry=registry)
    kubernetes = (out / KUBERNETES).is_dir()
    if as_json:
        document = {
            "deployment": str(out.absolute()),
            "image": image_name(bundle),
            "base": image_of(bundle.recipe),
            "gpus": bundle.gpus,
            "kubernetes": kubernetes,
            "notes": notes,
        }
        print(json.dumps(document))
        return
    where = shlex.quote(str(out))
    print(f"{out}: {image_name(bundle)} on {image_of(bundle.recipe)}, {bundle.gpus} GPU(s)")
    for note in notes:
        print(f"note: {note}")
    print(f"build    {shlex.join(build_command(bundle, out))}")
    print(f"compose  docker compose --file {where}/compose.yaml up --build")
    if kubernetes:
        print(f"cluster  kubectl apply --kustomize {where}/{KUBERNETES}")
