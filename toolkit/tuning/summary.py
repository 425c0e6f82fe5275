"""From runs to one line per (batch, domain, draft length), each compared with plain decoding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from toolkit.measure import metrics
from toolkit.measure.dialects import Counts
from toolkit.measure.prompts import ALL_DOMAINS
from toolkit.measure.records import GroupRun, RequestRecord
from toolkit.recipe.objective import Objective
from toolkit.tuning.grid import PLAIN
from toolkit.tuning.intervals import Interval, quantile_interval
from toolkit.tuning.objective import Gains, Gpus, gains

MILLION = 1_000_000
ONE = Gpus()
Rounds = Mapping[str, Sequence[GroupRun]]  # round key -> one run per draft length
Paired = list[dict[int, GroupRun]]  # rounds of one domain at one batch size: k -> run


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of the grid, summed over its requests. None: undefined (nothing to divide by)."""

    batch_size: int
    domain: str
    pooled: bool  # over every domain of the grid
    k: int  # 0: plain decoding
    rounds: int
    requests: int
    output_tokens: int
    verify_steps: int
    draft_tokens: int
    accepted_tokens: int
    acceptance_rate: float | None
    acceptance_length: float | None
    acceptance_by_position_joint: tuple[float | None, ...]
    acceptance_by_position_conditional: tuple[float | None, ...]
    ttft_p50_ns: float | None
    tpot_p50_ns: float | None
    tpot_p50_interval: Interval | None
    tpot_p99_ns: float | None
    tpot_objective_ns: float | None  # at the objective's percentile
    step_p50_ns: float | None  # between the chunks of a request: one verify step
    output_throughput: float | None
    gpu_seconds_per_million_tokens: float | None
    speedup: Interval | None  # over plain decoding, by the objective; None for plain itself
    gains: Gains | None  # the same by every objective

    @property
    def plain(self) -> bool:
        return self.k == PLAIN

    @property
    def counts(self) -> Counts:
        """What other tools derive their numbers from."""
        return Counts(
            self.k,
            self.requests,
            self.output_tokens,
            self.verify_steps,
            self.draft_tokens,
            self.accepted_tokens,
        )


def summarise(
    rounds: Rounds,
    *,
    ks: Sequence[int],
    batches: Sequence[int],
    domains: Sequence[str],
    objective: Objective,
    gpus: Gpus = ONE,
    seed: int = 0,
) -> list[Cell]:
    """Every point that was measured in all its rounds; the pool of all domains comes last."""
    found = paired(rounds.values())
    pools = [(domain, [domain]) for domain in domains]
    if len(domains) > 1:
        pools.append((ALL_DOMAINS, list(domains)))
    return [
        _cell(
            name,
            len(members) == len(domains),
            batch,
            k,
            [found[batch, domain] for domain in members],
            objective,
            gpus,
            seed,
        )
        for batch in batches
        for name, members in pools
        if all((batch, domain) in found for domain in members)
        for k in (PLAIN, *ks)
        if all(k in round for domain in members for round in found[batch, domain])
    ]


def measured_gains(
    domains: Sequence[Paired], k: int, objective: Objective, gpus: Gpus, rng: np.random.Generator
) -> Gains:
    """Over plain decoding of the same prompts in the same rounds."""
    ratios = [
        [list(tpot_ratios(round[PLAIN], round[k]).values()) for round in domain]
        for domain in domains
    ]
    counts = [[throughputs(round, k) for round in domain] for domain in domains]
    return gains(ratios, counts, objective, gpus, rng)


def paired(rounds: Iterable[Sequence[GroupRun]]) -> dict[tuple[int, str], Paired]:
    """(batch size, domain) -> its rounds, in the order in which they were measured."""
    found: dict[tuple[int, str], Paired] = {}
    for runs in rounds:
        first = runs[0]
        place = found.setdefault((first.batch_size, first.domain), [])
        place.append({run.k: run for run in runs})
    return found


def tpot_ratios(plain: GroupRun, run: GroupRun) -> dict[str, float]:
    """TPOT of plain decoding over that of this run by prompt, where there is one."""
    before = {record.prompt_id: metrics.tpot_ns(record) for record in plain.requests}
    ratios = {
        record.prompt_id: metrics.ratio(before[record.prompt_id], metrics.tpot_ns(record))
        for record in run.requests
    }
    return {prompt: ratio for prompt, ratio in ratios.items() if not math.isnan(ratio)}


def throughputs(round: Mapping[int, GroupRun], k: int) -> tuple[float, float, float, float]:
    """Tokens and nanoseconds of the run with k, and of plain decoding."""
    run, plain = round[k], round[PLAIN]
    return run.emitted_tokens, run.wall_ns, plain.emitted_tokens, plain.wall_ns


def _cell(
    name: str,
    pooled: bool,
    batch: int,
    k: int,
    domains: list[Paired],
    objective: Objective,
    gpus: Gpus,
    seed: int,
) -> Cell:
    runs = [round[k] for domain in domains for round in domain]
    records = [record for run in runs for record in run.requests]
    rng = np.random.default_rng([seed, batch, k, crc32(name.encode())])
    tpots = [[_defined(round[k].requests) for round in domain] for domain in domains]
    throughput = metrics.output_throughput(runs)
    gained = None if k == PLAIN else measured_gains(domains, k, objective, gpus, rng)
    return Cell(
        batch_size=batch,
        domain=name,
        pooled=pooled,
        k=k,
        rounds=len(runs),
        requests=len(records),
        output_tokens=sum(record.output_tokens for record in records),
        verify_steps=sum(record.verify_steps for record in records),
        draft_tokens=sum(record.draft_tokens for record in records),
        accepted_tokens=sum(record.accepted_tokens for record in records),
        acceptance_rate=_or_none(metrics.acceptance_rate(records)),
        acceptance_length=_or_none(metrics.acceptance_length(records)),
        acceptance_by_position_joint=_all(metrics.joint_acceptance_by_position(records, k)),
        acceptance_by_position_conditional=_all(
            metrics.conditional_acceptance_by_position(records, k)
        ),
        ttft_p50_ns=_or_none(metrics.percentile([record.ttft_ns for record in records], 50)),
        tpot_p50_ns=_or_none(metrics.percentile([metrics.tpot_ns(r) for r in records], 50)),
        tpot_p50_interval=quantile_interval(tpots, 0.5, rng),
        tpot_p99_ns=_or_none(metrics.percentile([metrics.tpot_ns(r) for r in records], 99)),
        tpot_objective_ns=_or_none(
            metrics.percentile([metrics.tpot_ns(r) for r in records], objective.percentile)
        ),
        step_p50_ns=_or_none(
            metrics.percentile([g for r in records for g in metrics.icl_ns(r)], 50)
        ),
        output_throughput=_or_none(throughput),
        gpu_seconds_per_million_tokens=_or_none(
            metrics.ratio(MILLION * gpus.busy(plain=k == PLAIN), throughput)
        ),
        speedup=gained.by(objective) if gained else None,
        gains=gained,
    )


def _defined(records: Iterable[RequestRecord]) -> list[float]:
    tpots = [metrics.tpot_ns(record) for record in records]
    return [tpot for tpot in tpots if not math.isnan(tpot)]


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _all(values: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(_or_none(value) for value in values)
