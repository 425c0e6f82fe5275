"""Alert rules and dashboards: PromQL by Prometheus' grammar, over metrics that exist."""

from __future__ import annotations

import json
import shutil
import subprocess

import promql_parser
import pytest
import yaml

from tests.serving.deploy.conftest import bundle, bundles  # noqa: F401 - fixtures
from toolkit.serving.counters import HISTOGRAMS
from toolkit.serving.monitoring.dashboard import dashboard, panels
from toolkit.serving.monitoring.exported import EXPORTED, exported
from toolkit.serving.monitoring.queries import Queries, metrics_in
from toolkit.serving.monitoring.rules import alert_rules

PROMTOOL = shutil.which("promtool")


def expressions(found) -> list[str]:
    rules = alert_rules(found)["groups"][0]["rules"]
    return [rule["expr"] for rule in rules] + [
        expr for panel in panels(found) for expr, _ in panel.lines
    ]


def selectors(expression: str) -> list:
    """Every vector selector, as Prometheus' own parser reads it."""
    found = []

    class Visitor:
        def pre_visit(self, node):
            if isinstance(node, promql_parser.VectorSelector):
                found.append(node)
            return True

        def post_visit(self, node):
            return True

    promql_parser.walk(Visitor(), promql_parser.parse(expression))
    return found


def test_every_expression_is_promql_over_metrics_that_the_layout_exports(bundle):  # noqa: F811
    known = exported(bundle.layout, bundle.recipe.backend)
    assert expressions(bundle)
    for expression in expressions(bundle):
        parsed = promql_parser.parse(expression)
        assert parsed is not None
        names = metrics_in(expression)
        assert names <= known
        assert names


def test_rules_have_what_a_person_needs(bundle):  # noqa: F811
    [group] = alert_rules(bundle)["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)
    if bundle.layout == "ensemble":
        assert names == ["RequestsFailing"]
    else:
        assert {"AcceptanceCollapse", "AcceptanceLengthStuckAtOne",
                "SpeculationSlowerThanPlain"} <= set(names)  # fmt: skip
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert promql_parser.parse_duration(rule["for"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["description"]


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here")
def test_promtool_takes_the_rules(bundle, tmp_path):  # noqa: F811
    path = tmp_path / "alerts.yml"
    path.write_text(yaml.safe_dump(alert_rules(bundle)))
    ran = subprocess.run(
        [str(PROMTOOL), "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


# Series as promtool writes them: x+1x20 grows by one twenty times.
_COLLAPSE = """
  - interval: 5m
    input_series:
      - series: 'spec_decode_num_drafts_total{{model="{m}"}}'
        values: '0+300x288'
      - series: 'spec_decode_num_draft_tokens_total{{model="{m}"}}'
        values: '0+1200x288'
      - series: 'spec_decode_num_accepted_tokens_total{{model="{m}"}}'
        values: '{accepted}'
    alert_rule_test:
      - eval_time: 23h
        alertname: {alert}
        exp_alerts: {expected}
"""


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here")
@pytest.mark.parametrize(
    ("accepted", "alert", "fires"),
    [
        ("0+800x288", "AcceptanceCollapse", False),
        ("0+800x260 208000+150x28", "AcceptanceCollapse", True),
        ("0+800x288", "AcceptanceLengthStuckAtOne", False),
        ("0+5x288", "AcceptanceLengthStuckAtOne", True),
    ],
)
def test_alerts_fire_when_they_should(bundles, tmp_path, accepted, alert, fires):  # noqa: F811
    found = bundles["cpu bls"]
    document = alert_rules(found)
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(document))
    [rule] = [r for r in document["groups"][0]["rules"] if r["alert"] == alert]
    expected = json.dumps(
        [{"exp_labels": rule["labels"], "exp_annotations": rule["annotations"]}] if fires else []
    )
    test = "rule_files: [alerts.yml]\nevaluation_interval: 5m\ntests:" + _COLLAPSE.format(
        m=found.entry, accepted=accepted, alert=alert, expected=expected
    )
    (tmp_path / "test.yml").write_text(test)
    ran = subprocess.run(
        [str(PROMTOOL), "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboard_is_json_for_grafana_with_panels_side_by_side(bundle):  # noqa: F811
    found = json.loads(json.dumps(dashboard(bundle)))
    assert len(found["uid"]) <= 40
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in found["panels"]}
    assert len(places) == len(found["panels"]) == len(panels(bundle))
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    for panel in found["panels"]:
        assert panel["datasource"]["uid"] == "prometheus"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    titles = [panel["title"] for panel in found["panels"]]
    assert ("Acceptance length" in titles) == (bundle.layout != "ensemble")
    assert ("KV cache blocks" in titles) == (bundle.recipe.backend == "tensorrt")


def test_the_acceptance_length_counts_the_tokens_of_a_step():
    """vLLM's definition: one more than what is accepted in a step that drafted."""
    text = Queries("m").acceptance_length("5m")
    assert text == (
        '1 + sum (rate(spec_decode_num_accepted_tokens_total{model="m"}[5m])) / '
        'sum (rate(spec_decode_num_drafts_total{model="m"}[5m]))'
    )


def test_an_unknown_metric_in_a_query_is_a_mistake_of_ours():
    with pytest.raises(ValueError, match="nobody exports"):
        metrics_in('rate(spec_decode_num_draft_total{model="m"}[5m])')
    names = {f"{name}_bucket" for name in HISTOGRAMS}
    assert names <= EXPORTED["bls"]
