"""What to know before trusting the numbers: each check looks for one way to be fooled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from toolkit.measure.metrics import LOOP_RATIO, loops, tpot_ns
from toolkit.measure.prompts import ALL_DOMAINS
from toolkit.measure.records import RequestRecord
from toolkit.recipe.schema import Recipe
from toolkit.speculation.typical import lossy
from toolkit.tuning.grid import PLAIN, Grid
from toolkit.tuning.summary import Cell

FEW_ROUNDS = 5
DRIFT = 0.10
ENOUGH_DRAFTS = 50  # with fewer, accepting none may be chance


@dataclass(frozen=True)
class Finding:
    """`alarm`: something is broken; `warning`: read the numbers with this in mind."""

    level: Literal["alarm", "warning"]
    text: str


@dataclass(frozen=True)
class Evidence:
    """Everything the checks look at; records in the order in which they were measured."""

    cells: Sequence[Cell]
    records: Sequence[RequestRecord]
    grid: Grid


def find(evidence: Evidence) -> list[Finding]:
    """All findings, alarms first."""
    found = [finding for check in CHECKS for finding in check(evidence)]
    return sorted(found, key=lambda finding: finding.level)


def lossy_output(recipe: Recipe) -> Iterator[Finding]:
    """Faster by saying something else is not faster."""
    if said := lossy(recipe.speculation):
        greedy = recipe.tune.sampling.temperature == 0
        measured = "measured here greedily, where it is exact" if greedy else "so measured here"
        yield Finding("warning", f"{said}; {measured}.")


def nothing_accepted(evidence: Evidence) -> Iterator[Finding]:
    """acceptance_length of exactly 1.00 is a broken head or vocabulary map, not a result."""
    refused: dict[str, dict[str, int]] = {}  # draft lengths -> domain -> draft tokens
    for domain in evidence.grid.domains:
        cells = [c for c in evidence.cells if c.domain == domain and not c.plain]
        silent = [c for c in cells if c.verify_steps and not c.accepted_tokens]
        if silent:
            drafted = sum(cell.draft_tokens for cell in silent)
            refused.setdefault(_list(cell.k for cell in silent), {})[domain] = drafted
    for ks, domains in refused.items():
        drafted = sum(domains.values())
        yield Finding(
            "warning" if 0 < drafted < ENOUGH_DRAFTS else "alarm",
            f"{', '.join(domains)}: acceptance_length is exactly 1.00 at k = {ks}: "
            + (
                f"none of {drafted} draft tokens was accepted. Suspect the drafter (another "
                "vocabulary, untrained or wrong weights) before believing the times."
                if drafted
                else "the drafter proposed nothing at all."
            ),
        )


def degenerate_loops(evidence: Evidence) -> Iterator[Finding]:
    """An output that repeats itself accepts everything."""
    for domain, records in _by_domain(evidence.records):
        if count := sum(map(loops, records)):
            yield Finding(
                "warning",
                f"{domain}: {count} of {len(records)} outputs repeat themselves (fewer than "
                f"{LOOP_RATIO:.0%} distinct bigrams), which flatters acceptance and speed-up.",
            )


def short_outputs(evidence: Evidence) -> Iterator[Finding]:
    """Outputs that stopped early weigh as much as full ones but were timed on few tokens."""
    for domain, records in _by_domain(evidence.records):
        stopped = [record.output_tokens for record in records if record.finish == "stop"]
        if 2 * len(stopped) > len(records):
            yield Finding(
                "warning",
                f"{domain}: {len(stopped)} of {len(records)} outputs ended before the wanted "
                f"length, after {median(stopped):.0f} tokens in the median; use prompts with "
                "longer answers for steadier times.",
            )
        if single := sum(record.output_tokens < 2 for record in records):
            yield Finding(
                "warning",
                f"{domain}: {single} output(s) of a single token have no TPOT and were left out.",
            )


def few_rounds(evidence: Evidence) -> Iterator[Finding]:
    """An interval over two or three groups is a rough one."""
    few = [
        f"{cell.domain} at batch {cell.batch_size} ({cell.rounds})"
        for cell in evidence.cells
        if cell.plain and cell.rounds < FEW_ROUNDS and cell.domain != ALL_DOMAINS
    ]
    if few:
        yield Finding(
            "warning",
            f"intervals rest on few rounds: {', '.join(few)}; more prompts make them reliable.",
        )


def left_over(evidence: Evidence) -> Iterator[Finding]:
    """A last group that is not full would be timed at another batch size, so it stays out."""
    grid = evidence.grid
    out = [
        f"{count} of {len(grid.domains[domain])} in {domain} at batch {batch}"
        for domain in grid.domains
        for batch in grid.batches
        if (count := grid.left_over(domain, batch))
    ]
    if out:
        yield Finding("warning", f"prompts left out, as they fill no batch: {', '.join(out)}.")


def drift(evidence: Evidence) -> Iterator[Finding]:
    """Pairing protects the speed-ups from a slow machine, not the absolute times."""
    for batch in evidence.grid.batches:
        plain = [
            tpot_ns(record)
            for record in evidence.records
            if record.k == PLAIN and record.batch_size == batch and record.output_tokens > 1
        ]
        half = len(plain) // 2
        if half < FEW_ROUNDS:
            continue
        change = median(plain[half:]) / median(plain[:half]) - 1
        if abs(change) > DRIFT:
            yield Finding(
                "warning",
                f"batch {batch}: plain decoding became {abs(change):.0%} "
                f"{'slower' if change > 0 else 'faster'} during the run; absolute times are "
                "unsteady (the speed-ups are paired and suffer less).",
            )


CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    nothing_accepted,
    degenerate_loops,
    short_outputs,
    few_rounds,
    left_over,
    drift,
)


def _by_domain(records: Iterable[RequestRecord]) -> Iterable[tuple[str, list[RequestRecord]]]:
    found: dict[str, list[RequestRecord]] = {}
    for record in records:
        found.setdefault(record.domain, []).append(record)
    return found.items()


def _list(ks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(ks))))
