"""The sitting of session.py, spread over many machines: each round on a node of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from toolkit.graph.run import Ran, Workers, run
from toolkit.graph.step import Graph, Needs, Step
from toolkit.measure.records import GroupRun
from toolkit.tuning.grid import Grid, Round, missing
from toolkit.tuning.journal import Journal
from toolkit.tuning.session import Outcome, Slot, round_line


def measure_on(
    workers: Workers,
    grid: Grid,
    journal: Journal,
    *,
    work: Callable[[Round], dict[str, Any]],
    needs: Needs,
    log: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Measure what the journal lacks; Ctrl-C ends it and keeps whole rounds.

    A round compares its draft lengths with each other, so rounds may run on several machines that
    are alike. Which one ran where stands in the timeline.
    """
    wanted = {round.key: round for round in grid.rounds()}
    done = {key: runs for key, runs in journal.load().items() if key in wanted}
    resumed, timeline = len(done), list[Slot]()
    steps = [
        Step(
            id=round.key,
            kind="round",
            title=f"measure {round.name}",
            outputs=(journal.path.name,),
            needs=needs,
            work=work(round),
        )
        for round in missing(list(wanted.values()), done)
    ]
    started = time.monotonic()

    def keep(ran: Ran) -> None:
        round = wanted[ran.step.id]
        done[round.key] = [GroupRun.from_json(found) for found in ran.result["runs"]]
        journal.append(round.key, done[round.key])
        timeline.append(Slot(round.name, ran.node, ran.start, ran.seconds))
        count = len(done) - resumed
        left = (time.monotonic() - started) / count * (len(wanted) - len(done))
        place = f"{len(done)}/{len(wanted)} on {ran.node}"
        log(round_line(round, done[round.key], place, left))

    interrupted = False
    try:
        run(Graph(steps), workers, title="tuning", report=keep)
    except KeyboardInterrupt:
        interrupted = True
    return Outcome(done, len(wanted), resumed, interrupted, tuple(timeline))
