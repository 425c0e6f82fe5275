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
        "round": "toolkit.tuning.rounds:measure",
    },
)


def run_step(kind: str, work: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of one step; all it knows of the rest is its document and the store."""
    result: Mapping[str, Any] = WORK[kind](work)
    return result
