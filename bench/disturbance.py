"""How much the steps of measured runs were disturbed, told from like steps of the same measurement.

Whoever else uses the core or the memory only ever adds time, for seconds or for minutes, and on a
shared machine up to as much again; a median over the few runs of a large batch then says more of
the neighbours than of the draft length. A grid has hundreds of steps of a kind (batch size, tokens
that are read, whether as many as in the step before, and texts of about one length): the quickest
tenth tell what such a step takes, and a run's disturbance is what its steps took over that.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.measure.time_steps import FLOOR

FEWEST = 8  # steps of a kind; of fewer nothing is known

Record = Mapping[str, Any]  # a request, as results.json has it
Run = tuple[str, int]  # round, draft length


def disturbances(records: Sequence[Record]) -> dict[Run, float]:
    """Time that the steps of each run took over what they take undisturbed; 1.2: a fifth more.

    Runs without a step of a known kind are missing.
    """
    groups: dict[Run, list[Record]] = {}
    for record in records:
        groups.setdefault((record["round"], record["k"]), []).append(record)
    steps = {run: list(_steps(group)) for run, group in groups.items()}
    times: dict[Hashable, list[int]] = {}
    for found in steps.values():
        for kinds, ns in found:
            for kind in kinds:
                times.setdefault(kind, []).append(ns)
    floors = {
        kind: float(np.quantile(taken, FLOOR))
        for kind, taken in times.items()
        if len(taken) >= FEWEST
    }
    slower = {}
    for run, found in steps.items():
        known = [
            (ns, floor)
            for kinds, ns in found
            if (floor := next((floors[kind] for kind in kinds if kind in floors), None))
        ]
        if known:
            slower[run] = sum(ns for ns, _ in known) / sum(floor for _, floor in known)
    return slower


def _steps(group: Sequence[Record]) -> Iterator[tuple[tuple[Hashable, ...], int]]:
    """Kinds, the closest first, and nanoseconds of each step while all requests are recorded.

    Requests of a group step together, and each notes when; the first chunk is the prefill's.
    """
    before = None
    drafted = [record["drafted_per_step"] for record in group]
    moments = [record["chunk_ns"] for record in group]
    for step in range(min(map(len, drafted))):
        [start, end] = [{times[place] for times in moments} for place in (step, step + 1)]
        if len(start) > 1 or len(end) > 1:
            return  # they do not step together
        tokens = sum(1 + drafts[step] for drafts in drafted)
        kind = (group[0]["batch_size"], tokens, tokens != before)
        before = tokens
        yield ((group[0]["domain"], *kind), kind), end.pop() - start.pop()
