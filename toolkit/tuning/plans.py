"""Day and night: few users who wait want latency, a full machine wants tokens.

Both come from the same rounds: every point's gain is known by TPOT and by throughput, so each has
its own choices; where they agree there is one plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.recipe.objective import Objective
from toolkit.tuning.choose import choose, schedule
from toolkit.tuning.intervals import Interval
from toolkit.tuning.summary import Cell


@dataclass(frozen=True)
class Plan:
    """One objective's schedule."""

    name: str  # day | night
    objective: str
    schedule: tuple[tuple[int, int], ...]  # (from this batch size on, draft length), 0: off
    tokens_per_s: float | None  # the most, all requests of the best batch size together
    at_batch: int | None


def plans(cells: Sequence[Cell], objective: Objective) -> list[Plan]:
    """Day and night where they differ; empty where one schedule serves both, or none is known."""
    free = Objective(percentile=objective.percentile, no_domain_slower=objective.no_domain_slower)
    made = [
        _plan("day", f"TPOT p{objective.percentile}", cells, free, by_tpot),
        _plan("night", "tokens/s", cells, free, by_throughput),
    ]
    day, night = made
    if day is None or night is None or day.schedule == night.schedule:
        return []
    return [day, night]


def by_tpot(cell: Cell) -> Interval | None:
    return cell.gains.tpot if cell.gains else None


def by_throughput(cell: Cell) -> Interval | None:
    return cell.gains.throughput if cell.gains else None


def _plan(
    name: str, word: str, cells: Sequence[Cell], objective: Objective, gain: Any
) -> Plan | None:
    choices = choose(cells, objective, gain=gain)
    steps = schedule(choices)
    if steps is None:
        return None
    taken = {choice.batch_size: choice.k for choice in choices if choice.best.pooled}
    used = [
        cell
        for cell in cells
        if cell.pooled and cell.k == taken.get(cell.batch_size) and cell.output_throughput
    ]
    top = max(used, key=lambda cell: cell.output_throughput or 0.0, default=None)
    return Plan(
        name,
        word,
        tuple(steps),
        top.output_throughput if top else None,
        top.batch_size if top else None,
    )


def words(found: Sequence[Plan]) -> str:
    """Both plans in a sentence; empty where there is one."""
    return " ".join(
        f"{plan.name.capitalize()} ({plan.objective}): {_steps(plan.schedule)}." for plan in found
    )


def _steps(steps: Sequence[tuple[int, int]]) -> str:
    return ", ".join(
        f"{f'k = {length}' if length else 'off'} from batch {batch} on" for batch, length in steps
    )


def document(found: Sequence[Plan]) -> list[dict[str, Any]]:
    """For results.json."""
    return [asdict(plan) for plan in found]
