"""Everything that can be known to go wrong before a build: no GPU, no conversion, no engine.

One file a check, named as in `CHECKS`. Their only inputs are the recipe, config files and headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from toolkit.errors import InputError
from toolkit.preflight import (
    other_machines,
    p1_matrix,
    p2_draft_length,
    p3_tokenizers,
    p4_tensors,
    p5_shapes,
    p6_agreement,
    p7_repository,
    p8_memory,
    p9_parallel,
)
from toolkit.preflight.facts import Facts
from toolkit.preflight.gather import gather
from toolkit.preflight.guided_section import check_guided
from toolkit.preflight.report import Finding, Report
from toolkit.preflight.tune_section import check_tune
from toolkit.recipe.schema import Recipe
from toolkit.registry import BACKENDS
from toolkit.store import Store

__all__ = ["CHECKS", "Report", "preflight"]

CHECKS: Mapping[str, Callable[[Facts], Iterator[Finding]]] = {
    "P1": p1_matrix.check,
    "P2": p2_draft_length.check,
    "P3": p3_tokenizers.check,
    "P4": p4_tensors.check,
    "P5": p5_shapes.check,
    "P6": p6_agreement.check,
    "P7": p7_repository.check,
    "P8": p8_memory.check,
    "P9": p9_parallel.check,
}


def preflight(
    recipe: Recipe,
    store: Store,
    *,
    fetch: bool = False,
    offline: bool | None = None,
    engines: Mapping[str, Path] | None = None,
    repository: Path | None = None,
    gpu: str | None = None,
    gpu_memory: float | None = None,
) -> Report:
    """Read headers and tokenizers of what is on this disk, and compare them with the recipe.

    With `fetch`, everything that is not here is brought here first, unless `offline` forbids it.
    `engines` are ready engine directories by role, `repository` a Triton model repository, `gpu`
    the name of a GPU (or `gpu_memory` its GiB) that everything must fit into.
    """
    report = Report()
    if recipe.backend in BACKENDS and (reason := BACKENDS[recipe.backend].unavailable()):
        # What is planned here and built elsewhere lacks nothing that a check needs.
        elsewhere = BACKENDS[recipe.backend].builds_elsewhere
        (report.notes if elsewhere else report.missing).append(f"backend: {reason}")
    facts = gather(
        recipe,
        store,
        report,
        fetch=fetch,
        offline=offline,
        engines=engines,
        repository=repository,
        gpu=gpu,
        gpu_memory=gpu_memory,
    )
    report.models = facts.described
    for name, check in CHECKS.items():
        report.checks[name] = _take(report, list(check(facts)))
    with suppress(InputError):  # P8 has said it
        budget = p8_memory.budget_of(facts)
        report.memory = budget.to_json() if budget else None
    _take(report, list(check_tune(recipe)))
    _take(report, list(check_guided(facts)))
    _take(report, list(other_machines.check(recipe, store)))
    return report


def _take(report: Report, findings: list[Finding]) -> str:
    """The findings into the report; the worst of them in a word."""
    for finding in findings:
        report.take(finding)
    levels = {finding.level for finding in findings}
    return next((f"{kind}s" for kind in ("problem", "note") if kind in levels), "ok")
