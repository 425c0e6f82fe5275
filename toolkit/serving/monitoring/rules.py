"""Alert rules of a deployment: those that the metrics of its layout can answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from toolkit.serving import counters as c
from toolkit.serving.deploy.bundle import Bundle
from toolkit.serving.monitoring.exported import exported
from toolkit.serving.monitoring.queries import Queries, metrics_in

_ENOUGH_DRAFTS = 200  # in the window: below that a rate says little
_ENOUGH_REQUESTS = 30


@dataclass(frozen=True)
class Rule:
    """One alert."""

    name: str
    expr: str
    lasting: str  # how long it must hold
    severity: str
    summary: str
    action: str

    def to_yaml(self) -> dict[str, Any]:
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.lasting,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.action},
        }


def alert_rules(bundle: Bundle) -> dict[str, Any]:
    """A Prometheus rule file."""
    known = exported(bundle.layout, bundle.recipe.backend)
    rules = [rule for rule in _rules(bundle) if metrics_in(rule.expr) <= known]
    return {
        "groups": [{"name": f"spectool-{bundle.name}", "rules": [rule.to_yaml() for rule in rules]}]
    }


def _rules(bundle: Bundle) -> Iterator[Rule]:
    q = Queries(bundle.entry)
    model = bundle.entry
    drafting = f"{q.increase(c.DRAFTS, '15m')} > {_ENOUGH_DRAFTS}"
    yield Rule(
        "AcceptanceCollapse",
        f"({q.acceptance_rate('15m')}) < 0.5 * ({q.acceptance_rate('1d')}) and {drafting}",
        "10m",
        "warning",
        f"{model}: half of the acceptance of the last day is gone",
        "Another kind of prompt, language or chat template reached the model, or draft and target "
        "no longer belong together: measure with spectool tune --mode trace on such prompts.",
    )
    yield Rule(
        "AcceptanceLengthStuckAtOne",
        f"({q.acceptance_length('15m')}) < 1.05 and {drafting}",
        "15m",
        "critical",
        f"{model}: verify steps accept nothing",
        "Speculation costs and gives nothing: wrong draft, wrong tokenizer, or a head whose "
        "tensors did not load. spectool check and spectool verify say which; num_draft_tokens: 0 "
        "switches it off for a request.",
    )
    yield _slower(q, model)
    yield Rule(
        "DraftModelFailing",
        f"{q.increase(c.DRAFT_FAILURES, '5m')} > 0",
        "5m",
        "critical",
        f"{model}: requests go on without their draft model",
        "They are answered, at plain speed. The log of the draft model has the reason.",
    )
    yield Rule(
        "RequestsWaiting",
        f"min_over_time(sum ({q.series(c.WAITING)})[5m:15s]) > 0",
        "5m",
        "warning",
        f"{model}: requests wait for a place in the batch",
        "More replicas, a larger engine.max_batch_size, or fewer draft tokens at this load "
        "(speculation.draft_length.policy: schedule).",
    )
    yield Rule(
        "RequestsFailing",
        f"({q.failures()}) > 0.05",
        "5m",
        "critical",
        f"{model}: more than one request in twenty fails",
        "The server's log has the reasons.",
    )


def _slower(q: Queries, model: str) -> Rule:
    """Against requests that drafted nothing: asked so, or switched off by a schedule."""
    mean = {
        drafted: q.mean(c.TPOT, "1h", where=f'drafted="{drafted}"') for drafted in ("true", "false")
    }
    enough = " and ".join(
        f"{q.increase(f'{c.TPOT}_count', '1h', where=f'{label}')} > {_ENOUGH_REQUESTS}"
        for label in ('drafted="true"', 'drafted="false"')
    )
    return Rule(
        "SpeculationSlowerThanPlain",
        f"({mean['true']}) > ({mean['false']}) and {enough}",
        "30m",
        "warning",
        f"{model}: a token takes longer with speculation than without",
        "Compared with requests that drafted nothing (send a few with num_draft_tokens: 0 as a "
        "control group). spectool tune finds the draft length for this load, or says off.",
    )
