"""What to know before trusting a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit.tuning.choose import Choice, overall
from toolkit.tuning.findings import Finding
from toolkit.tuning.summary import Cell
from toolkit.tuning.trace_mode import TraceReport, pairs

AGREEMENT = 0.95  # of a log's tokens; below it the log is of another model or other settings
OFF_BY = 0.10  # of the predicted TPOT
UNSTEADY = 0.10  # of a step: what two visits found different


def trace_findings(
    report: TraceReport, measured: Sequence[Cell], choices: Sequence[Choice]
) -> Iterator[Finding]:
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
            f"step times were unsteady (the two quickest visits to a point are {spread:.0%} "
            "apart): the machine was busy; predictions rest on them, so --fresh on a quiet one is "
            "worth its time.",
        )
    yield from _other_verdicts(report, choices)
    yield from _off(report, measured)


def _off(report: TraceReport, measured: Sequence[Cell]) -> Iterator[Finding]:
    """Plain decoding, which needs no trace, tells the machine's pace from a wrong prediction."""
    found = [
        (cell, error)
        for cell, other in pairs(report.again, measured)
        if (error := tpot_error(cell, other)) is not None
    ]
    paces = {(cell.batch_size, cell.domain): 1 + error for cell, error in found if cell.plain}
    moved = [_point(cell, error) for cell, error in found if cell.plain and abs(error) > OFF_BY]
    if moved:
        yield Finding(
            "warning",
            f"plain decoding was more than {OFF_BY:.0%} off the predicted TPOT: "
            f"{', '.join(moved)}; the machine ran at another pace than when its steps were timed, "
            "so predicted times are not those of now (ratios between them suffer less).",
        )
    at_that_pace = [
        (cell, (1 + error) / paces.get((cell.batch_size, cell.domain), 1.0) - 1)
        for cell, error in found
        if not cell.plain
    ]
    off = [_point(cell, error) for cell, error in at_that_pace if abs(error) > OFF_BY]
    if off:
        yield Finding(
            "warning",
            f"measured TPOT over that of plain decoding is more than {OFF_BY:.0%} off the "
            f"predicted ratio: {', '.join(off)}; either the machine was busy, or try --mode grid.",
        )


def _point(cell: Cell, error: float) -> str:
    return f"{cell.domain} at batch {cell.batch_size}, k = {cell.k} ({error:+.0%})"


def _other_verdicts(report: TraceReport, choices: Sequence[Choice]) -> Iterator[Finding]:
    """A prediction and a measurement that would be deployed differently."""
    found = {choice.batch_size: choice.verdict for choice in overall(choices)}
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
