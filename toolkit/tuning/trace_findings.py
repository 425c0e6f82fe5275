"""What to know before trusting a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit.tuning.choose import choose, overall
from toolkit.tuning.findings import Finding
from toolkit.tuning.summary import Cell
from toolkit.tuning.trace_mode import TraceReport, pairs

AGREEMENT = 0.95  # of a log's tokens; below it the log is of another model or other settings
OFF_BY = 0.10  # of the predicted TPOT
UNSTEADY = 0.10  # of a step's median: half the width of its interval


def trace_findings(report: TraceReport, measured: Sequence[Cell]) -> Iterator[Finding]:
    """Logs that the target would not have written, and predictions that measuring refutes."""
    for domain, share in report.traced.agreement.items():
        if share < AGREEMENT:
            yield Finding(
                "warning",
                f"{domain}: {1 - share:.0%} of the log's tokens are none that the target would "
                "give with these settings, so the log is of another model or other sampling "
                "(--temperature, --top-k, --top-p); its acceptance is only a hint.",
            )
    if report.log and report.log.repeated:
        yield Finding(
            "warning",
            f"{report.log.path}: {report.log.repeated} line(s) repeat an earlier prompt and were "
            "left out.",
        )
    spread = max((point.spread for point in report.times.points), default=0.0)
    if spread > UNSTEADY:
        yield Finding(
            "warning",
            f"step times were unsteady (the worst median is known to {spread:.0%}): the machine "
            "was busy; predictions rest on them, so --fresh on a quiet one is worth its time.",
        )
    yield from _other_verdicts(report, measured)
    off = [
        f"{cell.domain} at batch {cell.batch_size}, k = {cell.k} ({error:+.0%})"
        for cell, found in pairs(report.again, measured)
        if (error := tpot_error(cell, found)) is not None and abs(error) > OFF_BY
    ]
    if off:
        yield Finding(
            "warning",
            f"measured TPOT is more than {OFF_BY:.0%} off the predicted one: {', '.join(off)}; "
            "either the machine was busy, or try --mode grid.",
        )


def _other_verdicts(report: TraceReport, measured: Sequence[Cell]) -> Iterator[Finding]:
    """A prediction and a measurement that would be deployed differently."""
    found = {choice.batch_size: choice.verdict for choice in overall(choose(measured))}
    for choice in overall(report.choices):
        verdict = found.get(choice.batch_size, choice.verdict)
        if "undecided" not in (verdict, choice.verdict) and verdict != choice.verdict:
            yield Finding(
                "warning",
                f"batch {choice.batch_size}: predicted {choice.verdict}, measured {verdict}; few "
                "rounds confirm a prediction: more prompts, or --mode grid, settle it.",
            )


def tpot_error(predicted: Cell, measured: Cell) -> float | None:
    """Measured over predicted, less one."""
    if predicted.tpot_p50_ns is None or measured.tpot_p50_ns is None:
        return None
    return measured.tpot_p50_ns / predicted.tpot_p50_ns - 1
