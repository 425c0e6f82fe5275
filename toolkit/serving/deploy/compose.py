"""docker compose: Triton, the Prometheus that scrapes it, and a Grafana with its dashboard."""

from __future__ import annotations

from typing import Any

from toolkit.serving.deploy.bundle import Bundle
from toolkit.serving.deploy.docker import SHM_BYTES, image_name, inner_command, mounts
from toolkit.serving.deploy.images import GRAFANA, PROMETHEUS

GRAFANA_PORT, PROMETHEUS_PORT = 3000, 9090
_START_S = "600s"  # engines of 70B take minutes


def compose(bundle: Bundle) -> dict[str, Any]:
    """compose.yaml; everything is published on this machine alone."""
    return {
        "name": bundle.name,
        "services": {
            "triton": _triton(bundle),
            "prometheus": {
                "image": PROMETHEUS,
                "command": ["--config.file=/etc/prometheus/prometheus.yml"],
                "volumes": [
                    _file("./prometheus.yml", "/etc/prometheus/prometheus.yml"),
                    _file("./alerts.yml", "/etc/prometheus/alerts.yml"),
                    {"type": "volume", "source": "prometheus", "target": "/prometheus"},
                ],
                "ports": [_port(PROMETHEUS_PORT)],
                "restart": "unless-stopped",
            },
            "grafana": {
                "image": GRAFANA,
                "environment": {
                    "GF_AUTH_ANONYMOUS_ENABLED": "true",
                    "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
                    "GF_ANALYTICS_REPORTING_ENABLED": "false",
                },
                "volumes": [
                    _file("./grafana/provisioning", "/etc/grafana/provisioning"),
                    _file("./grafana/dashboards", "/var/lib/grafana/dashboards"),
                ],
                "ports": [_port(GRAFANA_PORT)],
                "depends_on": ["prometheus"],
                "restart": "unless-stopped",
            },
        },
        "volumes": {"prometheus": {}, **_hub_volume(bundle)},
    }


def prometheus(bundle: Bundle, target: str, *, rules: str = "alerts.yml") -> dict[str, Any]:
    """prometheus.yml; `target` is where Triton's metrics are."""
    return {
        "global": {"scrape_interval": "5s", "evaluation_interval": "15s"},
        "rule_files": [rules],
        "scrape_configs": [{"job_name": "triton", "static_configs": [{"targets": [target]}]}],
    }


def provisioning() -> dict[str, Any]:
    """Files below grafana/provisioning, by name."""
    return {
        "datasources/prometheus.yml": {
            "apiVersion": 1,
            "datasources": [
                {
                    "name": "Prometheus",
                    "uid": "prometheus",
                    "type": "prometheus",
                    "url": f"http://prometheus:{PROMETHEUS_PORT}",
                    "isDefault": True,
                }
            ],
        },
        "dashboards/spectool.yml": {
            "apiVersion": 1,
            "providers": [
                {
                    "name": "spectool",
                    "type": "file",
                    "options": {"path": "/var/lib/grafana/dashboards"},
                }
            ],
        },
    }


def _triton(bundle: Bundle) -> dict[str, Any]:
    serve = bundle.recipe.serve
    service: dict[str, Any] = {
        "image": image_name(bundle),
        "build": {"context": "."},
        "command": inner_command(bundle),
        "init": True,
        "environment": {"SPECTOOL_HOST": "0.0.0.0"},
        "shm_size": SHM_BYTES,
        "volumes": [_file(str(place), str(place)) for place in mounts(bundle)],
        "ports": [_port(p) for p in (serve.http_port, serve.grpc_port, serve.metrics_port)],
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _probe(serve.http_port)],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": _START_S,
        },
        "stop_signal": "SIGINT",
        "stop_grace_period": "30s",
        "restart": "unless-stopped",
    }
    if bundle.recipe.backend == "pytorch":
        service["environment"]["HF_TOKEN"] = "${HF_TOKEN:-}"
        service["volumes"].append(
            {"type": "volume", "source": "huggingface", "target": "/root/.cache/huggingface"}
        )
    if bundle.gpus:
        service["ulimits"] = {"memlock": -1, "stack": 67108864}
        device = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return service


def _probe(port: int) -> str:
    url = f"http://127.0.0.1:{port}/v2/health/ready"
    return f"import urllib.request; urllib.request.urlopen({url!r}, timeout=4)"


def _hub_volume(bundle: Bundle) -> dict[str, Any]:
    return {"huggingface": {}} if bundle.recipe.backend == "pytorch" else {}


def _file(source: str, target: str) -> dict[str, Any]:
    found = {"type": "bind", "source": source.replace("$", "$$"), "target": target}
    return {**found, "read_only": True}


def _port(port: int) -> str:
    return f"127.0.0.1:{port}:{port}"
