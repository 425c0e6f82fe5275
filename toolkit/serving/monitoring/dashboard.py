"""A Grafana dashboard of a deployment, with the panels that its metrics can fill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from toolkit.serving import counters as c
from toolkit.serving.deploy.bundle import Bundle
from toolkit.serving.monitoring.exported import exported
from toolkit.serving.monitoring.queries import Queries, metrics_in

DATASOURCE = "prometheus"  # the uid that provisioning gives it
_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 2


@dataclass(frozen=True)
class Panel:
    """One graph: (expression, legend) for each of its lines."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    about: str = ""


def panels(bundle: Bundle) -> list[Panel]:
    """Those whose every line can be drawn."""
    known = exported(bundle.layout, bundle.recipe.backend)
    return [
        panel
        for panel in _panels(Queries(bundle.entry))
        if all(metrics_in(expr) <= known for expr, _ in panel.lines)
    ]


def dashboard(bundle: Bundle) -> dict[str, Any]:
    """The JSON model that Grafana imports."""
    return {
        "uid": f"spectool-{bundle.name}"[:40],
        "title": f"Speculative decoding: {bundle.recipe.name}",
        "tags": ["spectool", bundle.recipe.speculation.drafter],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "templating": {"list": []},
        "panels": [_graph(number, panel) for number, panel in enumerate(panels(bundle))],
    }


def _panels(q: Queries) -> Iterator[Panel]:
    yield Panel(
        "Acceptance length", "none", ((q.acceptance_length(), "tokens per verify step"),),
        "1 means that nothing is accepted.",
    )  # fmt: skip
    yield Panel("Acceptance rate", "percentunit", ((q.acceptance_rate(), "accepted / drafted"),))
    yield Panel(
        "Acceptance length of requests", "none",
        tuple((q.quantile(p, c.ACCEPTANCE_LENGTH), f"p{p * 100:g}") for p in (0.1, 0.5, 0.9)),
        "Means of single requests: a low p10 is a domain that the drafter does not know.",
    )  # fmt: skip
    yield Panel(
        "Acceptance by position", "percentunit",
        ((q.acceptance_by_position(), "position {{position}}"),),
        "Of all verify steps, those that accepted the draft up to this position.",
    )  # fmt: skip
    yield Panel(
        "Time per output token", "s",
        tuple(
            (q.quantile(p, c.TPOT, by="drafted"), f"p{p * 100:g}, drafted: {{{{drafted}}}}")
            for p in (0.5, 0.99)
        ),
    )  # fmt: skip
    yield Panel(
        "Time to first token", "s",
        tuple((q.quantile(p, c.TTFT), f"p{p * 100:g}") for p in (0.5, 0.99)),
    )  # fmt: skip
    yield Panel("Output tokens per second", "none", ((q.rate(c.GENERATION_TOKENS, "1m"), "all"),))
    yield Panel(
        "Requests", "none",
        (
            (f"sum ({q.series(c.RUNNING)})", "running"),
            (f"sum ({q.series(c.WAITING)})", "waiting"),
        ),
    )  # fmt: skip
    yield Panel(
        "Requests per second", "reqps",
        ((q.rate(c.REQUESTS, by="finished_reason"), "{{finished_reason}}"),),
    )  # fmt: skip
    yield Panel("Share of drafting in a verify step", "percentunit", ((q.draft_share(), "draft"),))
    yield Panel(
        "Draft model failures", "none",
        ((q.increase(c.DRAFT_FAILURES, "5m"), "requests that went on without"),),
    )  # fmt: skip
    yield Panel("Failed requests", "percentunit", ((q.failures(), "of all"),))
    yield Panel(
        "KV cache blocks", "none",
        (('sum by (model, kv_cache_block_type) (nv_trt_llm_kv_cache_block_metrics{'
          'kv_cache_block_type=~"used|free|max"})', "{{model}} {{kv_cache_block_type}}"),),
    )  # fmt: skip


def _graph(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": {"type": "prometheus", "uid": DATASOURCE},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": {"type": "prometheus", "uid": DATASOURCE},
                "expr": expr,
                "legendFormat": legend,
            }
            for place, (expr, legend) in enumerate(panel.lines)
        ],
    }
