"""What each kind of step does: a function from one JSON document to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.registry import Registry

WORK = Registry(
    "step",
    {
        "artefact": "toolkit.execute:make_artefact",
        "head_data": "toolkit.training.shard_step:fill",
        "contest": "toolkit.tuning.rounds:measure_contest",
        "round": "toolkit.tuning.rounds:measure",
        "step_times": "toolkit.tuning.trace_work:time_steps",
        "trace": "toolkit.tuning.trace_work:read",
    },
)


def run_step(kind: str, work: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of one step; all it knows of the rest is its document and the store."""
    result: Mapping[str, Any] = WORK[kind](work)
    return result
