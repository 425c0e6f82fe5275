"""The directory that deploys a repository: image, compose, monitoring, Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from toolkit.errors import InputError
from toolkit.serving.deploy.bundle import Bundle
from toolkit.serving.deploy.compose import compose, prometheus, provisioning
from toolkit.serving.deploy.docker import write_context
from toolkit.serving.deploy.kubernetes import manifests
from toolkit.serving.monitoring.dashboard import dashboard
from toolkit.serving.monitoring.rules import alert_rules
from toolkit.store import new_directory

KUBERNETES = "kubernetes"


def write_deployment(bundle: Bundle, out: Path, *, registry: str = "") -> list[str]:
    """Whole or absent; returns what is worth knowing about it."""
    _check(bundle)
    notes = list(_notes(bundle))
    with new_directory(out.expanduser().absolute()) as directory:
        write_context(bundle, directory)
        documents: dict[str, Mapping[str, Any]] = {
            "compose.yaml": compose(bundle),
            "prometheus.yml": prometheus(bundle, f"triton:{bundle.recipe.serve.metrics_port}"),
            "alerts.yml": alert_rules(bundle),
        }
        documents |= {f"grafana/provisioning/{n}": d for n, d in provisioning().items()}
        if not bundle.outside:
            found = manifests(bundle, registry)
            documents |= {f"{KUBERNETES}/{name}": document for name, document in found.items()}
        for name, document in documents.items():
            _write(directory / name, yaml.safe_dump(dict(document), sort_keys=False, width=1000))
        text = json.dumps(dashboard(bundle), indent=2) + "\n"
        _write(directory / f"grafana/dashboards/{bundle.name}.json", text)
    return notes


def _check(bundle: Bundle) -> None:
    if bundle.recipe.serve.pytorch.nodes > 1 and bundle.recipe.backend == "pytorch":
        raise InputError(
            f"serve.pytorch.nodes: {bundle.recipe.serve.pytorch.nodes} machines serve one instance "
            "through srun: run the repository's launch.sh; containers here are for one machine"
        )


def _notes(bundle: Bundle) -> list[str]:
    found = []
    if bundle.outside:
        places = ", ".join(map(str, bundle.outside))
        found.append(
            f"no {KUBERNETES}/: the repository points to {places}; write it with --copy-engines"
        )
    if bundle.layout == "ensemble":
        found.append(
            "an engine that drafts by itself counts no drafts on /metrics: ask requests for "
            "return_perf_metrics"
        )
    return found


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
