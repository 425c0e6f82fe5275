"""Kubernetes manifests of a repository that holds its own engines.

All ranks of an engine run in one pod, which has a GPU for each. Metrics reach Prometheus through a
PodMonitor (prometheus-operator); the autoscaler reads one of them through prometheus-adapter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.serving import counters
from toolkit.serving.deploy.bundle import Bundle
from toolkit.serving.deploy.docker import SHM_BYTES, image_name, inner_command
from toolkit.serving.monitoring.dashboard import dashboard
from toolkit.serving.monitoring.exported import exported
from toolkit.serving.monitoring.rules import alert_rules

_READY, _LIVE = "/v2/health/ready", "/v2/health/live"
_START_S, _STOP_S = 1800, 60  # an engine of 70B is read from a network disk
_MOST_REPLICAS = 4
_ROOM = 2.5  # times its size: the next repository may lie beside it
HUB = "/root/.cache/huggingface"


def manifests(bundle: Bundle, registry: str = "") -> dict[str, dict[str, Any]]:
    """File name -> object, in the order in which they are applied."""
    found = {
        "volume.yaml": _volume(bundle, "models", _gib(bundle)),
        "deployment.yaml": _deployment(bundle, registry),
        "service.yaml": _service(bundle),
        "podmonitor.yaml": _pod_monitor(bundle),
        "autoscaler.yaml": _autoscaler(bundle),
        "alerts.yaml": _object(
            bundle, "monitoring.coreos.com/v1", "PrometheusRule", spec=alert_rules(bundle)
        ),
        "dashboard.yaml": _dashboard(bundle),
    }
    if bundle.recipe.backend == "pytorch":
        found["hub.yaml"] = _volume(bundle, "hub", 500)
    found["kustomization.yaml"] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(found),
    }
    return found


def _deployment(bundle: Bundle, registry: str) -> dict[str, Any]:
    labels = _labels(bundle)
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        # A second pod would find no free GPU to start on.
        "strategy": {"type": "Recreate"} if bundle.gpus else {"type": "RollingUpdate"},
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": _STOP_S,
                "containers": [_container(bundle, registry)],
                "volumes": list(_volumes(bundle)),
            },
        },
    }
    return _object(bundle, "apps/v1", "Deployment", spec=spec)


def _container(bundle: Bundle, registry: str) -> dict[str, Any]:
    port = bundle.recipe.serve.http_port
    environment = [{"name": "SPECTOOL_HOST", "value": "0.0.0.0"}]
    mounts: list[dict[str, Any]] = [
        # Where it was written: engines are named by absolute paths.
        {"name": "models", "mountPath": str(bundle.repository), "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if bundle.recipe.backend == "pytorch":
        mounts.append({"name": "hub", "mountPath": HUB})
    return {
        "name": "triton",
        "image": f"{registry.rstrip('/')}/{image_name(bundle)}" if registry else image_name(bundle),
        "command": inner_command(bundle),
        "env": environment,
        "ports": [
            {"name": name, "containerPort": number} for name, number in _ports(bundle).items()
        ],
        "resources": _resources(bundle),
        "startupProbe": _probe(_READY, port, period=5, failures=_START_S // 5),
        "readinessProbe": _probe(_READY, port, period=5, failures=3),
        "livenessProbe": _probe(_LIVE, port, period=10, failures=6),
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": mounts,
    }


def _resources(bundle: Bundle) -> dict[str, Any]:
    requests = {"cpu": "4", "memory": "16Gi"}
    if not bundle.gpus:
        return {"requests": requests}
    gpus = {"nvidia.com/gpu": str(bundle.gpus)}
    return {"requests": {**requests, **gpus}, "limits": gpus}


def _probe(path: str, port: int, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": 4,
        "failureThreshold": failures,
    }


def _volumes(bundle: Bundle) -> Iterator[dict[str, Any]]:
    claims = ["models", *(["hub"] if bundle.recipe.backend == "pytorch" else [])]
    for name in claims:
        yield {"name": name, "persistentVolumeClaim": {"claimName": f"{bundle.name}-{name}"}}
    # Triton's models talk through it; a pod has 64 MiB by itself.
    yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(SHM_BYTES)}}


def _service(bundle: Bundle) -> dict[str, Any]:
    ports = [
        {"name": name, "port": number, "targetPort": name}
        for name, number in _ports(bundle).items()
    ]
    return _object(bundle, "v1", "Service", spec={"selector": _labels(bundle), "ports": ports})


def _pod_monitor(bundle: Bundle) -> dict[str, Any]:
    spec = {
        "selector": {"matchLabels": _labels(bundle)},
        "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": "15s"}],
    }
    return _object(bundle, "monitoring.coreos.com/v1", "PodMonitor", spec=spec)


def _autoscaler(bundle: Bundle) -> dict[str, Any]:
    """On requests that wait: of our models, else of Triton's own queue."""
    ours = counters.WAITING in exported(bundle.layout, bundle.recipe.backend)
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {
                "name": counters.WAITING if ours else "nv_inference_pending_request_count",
                "selector": {"matchLabels": {"model": bundle.entry}},
            },
            "target": {"type": "AverageValue", "averageValue": "1"},
        },
    }
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": bundle.name},
        "minReplicas": 1,
        "maxReplicas": _MOST_REPLICAS,
        "metrics": [metric],
        # Loading takes minutes: a pod that came for a burst stays for the next one.
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 900}},
    }
    return _object(bundle, "autoscaling/v2", "HorizontalPodAutoscaler", spec=spec)


def _dashboard(bundle: Bundle) -> dict[str, Any]:
    found = _object(bundle, "v1", "ConfigMap", name=f"{bundle.name}-dashboard")
    found["metadata"]["labels"]["grafana_dashboard"] = "1"
    return {**found, "data": {f"{bundle.name}.json": json.dumps(dashboard(bundle), indent=1)}}


def _volume(bundle: Bundle, what: str, gib: int) -> dict[str, Any]:
    spec = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": f"{gib}Gi"}},
    }
    name = f"{bundle.name}-{what}"
    return _object(bundle, "v1", "PersistentVolumeClaim", spec=spec, name=name)


def _gib(bundle: Bundle) -> int:
    size = sum(int(file["bytes"]) for file in bundle.manifest.get("files", {}).values())
    return 1 + int(size / 2**30 * _ROOM)


def _ports(bundle: Bundle) -> dict[str, int]:
    serve = bundle.recipe.serve
    return {"http": serve.http_port, "grpc": serve.grpc_port, "metrics": serve.metrics_port}


def _labels(bundle: Bundle) -> dict[str, str]:
    return {"app.kubernetes.io/name": "spectool", "app.kubernetes.io/instance": bundle.name}


def _object(
    bundle: Bundle,
    api: str,
    kind: str,
    *,
    spec: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    metadata = {"name": name or bundle.name, "labels": _labels(bundle)}
    found: dict[str, Any] = {"apiVersion": api, "kind": kind, "metadata": metadata}
    return found if spec is None else {**found, "spec": dict(spec)}
