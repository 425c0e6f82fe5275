"""Compose files and manifests, held against the schemas of those who read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import kubernetes_validate
import pytest
import yaml

from toolkit.errors import InputError
from toolkit.serving.deploy.bundle import open_bundle
from toolkit.serving.deploy.compose import compose
from toolkit.serving.deploy.files import write_deployment
from toolkit.serving.deploy.kubernetes import manifests

GOLDEN = Path(__file__).parents[2] / "golden/schemas"
COMPOSE = json.loads(
    (
        Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor/compose-spec.json"
    ).read_text()
)
CUSTOM = {"PodMonitor": "podmonitors.json", "PrometheusRule": "prometheusrules.json"}


def strict(schema: Any) -> Any:
    """A custom resource's schema that refuses what a cluster would drop without a word."""
    if isinstance(schema, list):
        return [strict(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    # `metadata` of the resource itself is checked by Kubernetes, not by this schema.
    if isinstance(found.get("properties"), dict) and found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


def validate(document: dict[str, Any]) -> None:
    kind = document["kind"]
    if kind == "Kustomization":
        assert set(document) == {"apiVersion", "kind", "resources"}
        return
    if kind in CUSTOM:
        schema = strict(json.loads((GOLDEN / CUSTOM[kind]).read_text()))
        schema["properties"]["metadata"] = {"type": "object"}
        jsonschema.Draft7Validator(schema).validate(document)
        return
    kubernetes_validate.validate(document, "1.34", strict=True)


def test_compose_is_what_docker_reads(bundle):
    document = yaml.safe_load(yaml.safe_dump(compose(bundle)))
    jsonschema.Draft7Validator(COMPOSE).validate(document)
    for service in document["services"].values():
        assert service["image"].partition(":")[2] not in ("", "latest")
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:")
    assert document["services"]["triton"]["shm_size"] >= 1 << 30


def test_manifests_are_what_kubernetes_takes(bundle):
    found = manifests(bundle, "registry.example/team")
    for document in found.values():
        validate(yaml.safe_load(yaml.safe_dump(document)))
    assert set(found["kustomization.yaml"]["resources"]) == set(found) - {"kustomization.yaml"}
    [container] = found["deployment.yaml"]["spec"]["template"]["spec"]["containers"]
    limits = container["resources"].get("limits", {})
    wanted = {"engines bls": 2, "engines medusa": 1, "llmapi": 1, "llmapi tp 4": 4}
    gpus = next((n for name, n in wanted.items() if bundle.repository.name == f"{name} repo"), 0)
    assert limits == ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    assert container["image"].startswith("registry.example/team/spectool-")
    volumes = found["deployment.yaml"]["spec"]["template"]["spec"]["volumes"]
    assert {"medium": "Memory", "sizeLimit": str(1 << 30)} in [v.get("emptyDir") for v in volumes]


@pytest.mark.parametrize(
    ("file", "path", "value"),
    [
        ("deployment.yaml", ("spec", "template", "spec", "containers", 0, "prots"), []),
        ("deployment.yaml", ("spec", "replicas"), "one"),
        ("autoscaler.yaml", ("spec", "maxReplicas"), "many"),
        ("service.yaml", ("spec", "ports", 0, "port"), "http"),
        ("podmonitor.yaml", ("spec", "podMetricsEndpoints", 0, "prot"), "metrics"),
        ("alerts.yaml", ("spec", "groups", 0, "rules", 0, "expression"), "1"),
    ],
)
def test_the_schemas_would_find_a_mistake(bundles, file, path, value):
    document = json.loads(json.dumps(manifests(bundles["llmapi"])[file]))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate(document)


def test_selectors_meet_labels_and_ports_meet_names(bundle):
    found = manifests(bundle)
    template = found["deployment.yaml"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert found["deployment.yaml"]["spec"]["selector"]["matchLabels"] == labels
    assert found["service.yaml"]["spec"]["selector"] == labels
    assert found["podmonitor.yaml"]["spec"]["selector"]["matchLabels"] == labels
    names = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in found["service.yaml"]["spec"]["ports"]} == names
    assert found["podmonitor.yaml"]["spec"]["podMetricsEndpoints"][0]["port"] in names
    claims = {v["persistentVolumeClaim"]["claimName"] for v in template["spec"]["volumes"]
              if "persistentVolumeClaim" in v}  # fmt: skip
    made = {d["metadata"]["name"] for d in found.values()
            if d["kind"] == "PersistentVolumeClaim"}  # fmt: skip
    assert claims == made


def test_the_directory_is_whole_or_absent(bundle, tmp_path):
    out = tmp_path / "out"
    write_deployment(bundle, out)
    assert (out / "compose.yaml").is_file()
    assert len(list((out / "kubernetes").iterdir())) >= 8
    with pytest.raises(InputError, match="not empty"):
        write_deployment(bundle, out)


def test_a_repository_that_points_elsewhere_has_no_manifests(built, tmp_path):
    from tests.serving.conftest import with_layout
    from toolkit.serving.repository import write_repository

    bundle = open_bundle(write_repository(with_layout(built, "bls"), tmp_path / "repo"))
    [note] = write_deployment(bundle, tmp_path / "out")
    assert "--copy-engines" in note
    assert not (tmp_path / "out/kubernetes").exists()


def test_several_machines_are_not_a_container(tmp_path):
    from tests.serving.llmapi.deployments import deployed, recipe
    from toolkit.serving.repository import write_repository

    given = recipe(
        target={"checkpoint": "org/target", "parallel": {"tp": 8}}, serve={"pytorch": {"nodes": 2}}
    )
    bundle = open_bundle(write_repository(deployed(given, tmp_path), tmp_path / "repo"))
    with pytest.raises(InputError, match="srun"):
        write_deployment(bundle, tmp_path / "out")


def test_other_peoples_repositories_are_refused(tmp_path):
    with pytest.raises(InputError, match="not a repository that spectool repo wrote"):
        open_bundle(tmp_path)
