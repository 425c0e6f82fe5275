"""What every draft length will bring, from a trace and a table of step times.

Counts are exact expectations. Times are those of a group played through: step by step, what every
member drafts there says how many tokens the step reads, and the table says how long that takes; a
greedy text has one course, a sampled one several. Predictions take the form of measured cells, so
that the same rules choose and the same tables show them; counts are rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from toolkit.measure.metrics import percentile, ratio
from toolkit.measure.prompts import ALL_DOMAINS
from toolkit.measure.step_times import StepTimes
from toolkit.measure.trace_rounds import Expected, add, expected_rounds, play
from toolkit.recipe.objective import Objective
from toolkit.speculation.draft_length import DraftLengthPolicy, Fixed
from toolkit.speculation.trace import DraftTrace
from toolkit.tuning.grid import PLAIN, Round
from toolkit.tuning.intervals import quantile_interval
from toolkit.tuning.objective import Gpus, gains
from toolkit.tuning.summary import MILLION, ONE, Cell

COURSES = 8  # that a sampled text is played

Traces = Mapping[tuple[str, str], DraftTrace]  # (domain, prompt id)


@dataclass(frozen=True)
class _Group:
    """A round at one draft length, as it will go: exact counts, and courses with their times."""

    requests: Sequence[Expected]
    tpots: Sequence[float]  # of every request in every course; nan: nothing after the first token
    emitted: float  # in the mean over the courses, all requests until the slowest is done
    wall_ns: float
    step_ns: float  # in the mean; nan without steps


class Predictor:
    """One drafter's traces over the grid's rounds, with the step times of one machine."""

    def __init__(
        self,
        traces: Traces,
        times: StepTimes,
        *,
        max_tokens: int,
        objective: Objective,
        gpus: Gpus = ONE,
        seed: int,
    ) -> None:
        self._traces, self._times, self._gpus = traces, times, gpus
        self._wanted, self._objective, self._seed = max_tokens - 1, objective, seed
        self._expected: dict[tuple[str, str, str], Expected] = {}
        self._groups: dict[tuple[str, str], _Group] = {}

    @property
    def confident(self) -> bool:
        """Whether the traces know how sure the drafter is."""
        return all(trace.sure is not None for trace in self._traces.values() if len(trace.accept))

    def tpot_p50_ns(self, rounds: Sequence[Round], policy: DraftLengthPolicy) -> float:
        """Over all requests of these rounds; nan where none goes on after its first token."""
        tpots = [tpot for round in rounds for tpot in _defined(self._group(round, policy).tpots)]
        return percentile(tpots, 50)

    def gained(self, round: Round, k: int) -> tuple[dict[str, float], float]:
        """Over plain decoding: TPOT by prompt, where there is one, and throughput of the round."""
        plain, run = (self._group(round, Fixed(length)) for length in (PLAIN, k))
        before, now = (
            np.reshape(group.tpots, (-1, len(round.prompts))).mean(axis=0) for group in (plain, run)
        )
        ratios = {
            prompt.id: ratio(*pair)
            for prompt, *pair in zip(round.prompts, before.tolist(), now.tolist(), strict=True)
        }
        throughput = ratio(ratio(run.emitted, run.wall_ns), ratio(plain.emitted, plain.wall_ns))
        return {prompt: gain for prompt, gain in ratios.items() if not math.isnan(gain)}, throughput

    def cells(
        self, rounds: Sequence[Round], policies: Mapping[int, DraftLengthPolicy]
    ) -> list[Cell]:
        """Every (batch, domain, draft length) as if measured in these rounds; the pool last.

        `policies` has plain decoding under 0.
        """
        groups: dict[tuple[int, str], list[Round]] = {}
        for round in rounds:
            groups.setdefault((round.batch_size, round.domain), []).append(round)
        domains = list(dict.fromkeys(round.domain for round in rounds))
        pools = [(domain, [domain]) for domain in domains]
        if len(domains) > 1:
            pools.append((ALL_DOMAINS, domains))
        return [
            self._cell(batch, name, len(members) == len(domains), k, policies, found)
            for batch in sorted({round.batch_size for round in rounds})
            for name, members in pools
            if all((batch, domain) in groups for domain in members)
            for found in [[groups[batch, domain] for domain in members]]
            for k in policies
        ]

    def _cell(
        self,
        batch: int,
        name: str,
        pooled: bool,
        k: int,
        policies: Mapping[int, DraftLengthPolicy],
        domains: Sequence[Sequence[Round]],
    ) -> Cell:
        plain = [[self._group(round, policies[PLAIN]) for round in domain] for domain in domains]
        runs = [[self._group(round, policies[k]) for round in domain] for domain in domains]
        rng = np.random.default_rng([self._seed, batch, k, crc32(name.encode())])
        requests = [request for domain in runs for group in domain for request in group.requests]
        total = add(requests)
        tpots = [[_defined(group.tpots) for group in domain] for domain in runs]
        everything = [tpot for domain in tpots for group in domain for tpot in group]
        joint = [ratio(value, total.verify_steps) for value in total.accepted_by_position[:k]]
        walls = [(group.emitted, group.wall_ns) for domain in runs for group in domain]
        gained = None
        if k != PLAIN:
            both = [list(zip(*pair, strict=True)) for pair in zip(runs, plain, strict=True)]
            gained = gains(
                [[_ratios(base, run) for run, base in domain] for domain in both],
                [
                    [(r.emitted, r.wall_ns, b.emitted, b.wall_ns) for r, b in domain]
                    for domain in both
                ],
                self._objective,
                self._gpus,
                rng,
            )
        throughput = ratio(sum(t for t, _ in walls) * 1e9, sum(ns for _, ns in walls))
        return Cell(
            batch_size=batch,
            domain=name,
            pooled=pooled,
            k=k,
            rounds=sum(map(len, runs)),
            requests=len(requests),
            output_tokens=round(total.tokens) + len(requests),
            verify_steps=round(total.verify_steps),
            draft_tokens=round(total.drafted),
            accepted_tokens=round(total.accepted),
            acceptance_rate=_or_none(ratio(total.accepted, total.drafted)),
            acceptance_length=_or_none(total.acceptance_length),
            acceptance_by_position_joint=tuple(map(_or_none, joint)),
            acceptance_by_position_conditional=tuple(
                _or_none(ratio(b, a)) for a, b in zip([1.0, *joint], joint, strict=False)
            ),
            ttft_p50_ns=None,
            tpot_p50_ns=_or_none(percentile(everything, 50)),
            tpot_p50_interval=quantile_interval(tpots, 0.5, rng),
            tpot_p99_ns=_or_none(percentile(everything, 99)),
            tpot_objective_ns=_or_none(percentile(everything, self._objective.percentile)),
            step_p50_ns=_or_none(percentile([group.step_ns for d in runs for group in d], 50)),
            output_throughput=_or_none(throughput),
            gpu_seconds_per_million_tokens=_or_none(
                ratio(MILLION * self._gpus.busy(plain=k == PLAIN), throughput)
            ),
            speedup=gained.by(self._objective) if gained else None,
            gains=gained,
        )

    def _group(self, round: Round, policy: DraftLengthPolicy) -> _Group:
        key = (round.key, repr(policy))
        if key not in self._groups:
            self._groups[key] = self._played(round, policy)
        return self._groups[key]

    def _played(self, round: Round, policy: DraftLengthPolicy) -> _Group:
        rng = np.random.default_rng([self._seed, int(round.key, 16)])
        traces = [self._traces[round.domain, prompt.id] for prompt in round.prompts]
        lengths = np.array([len(prompt.tokens) for prompt in round.prompts])
        prefill = self._times.prefill_ns[round.batch_size] * float(lengths.sum())
        tpots: list[float] = []
        walls: list[tuple[float, float]] = []
        spent: list[float] = []
        for _ in range(COURSES if any(map(_by_chance, traces)) else 1):
            courses = [play(trace, policy, rng, wanted=self._wanted) for trace in traces]
            steps = max(len(course.drafted) for course in courses)
            drafted = np.stack([_going_on(c.drafted, steps) for c in courses], axis=1)
            emitted = np.stack([_going_on(c.emitted, steps) for c in courses], axis=1)
            grown = np.concatenate([np.zeros((1, len(traces))), np.cumsum(emitted, axis=0)])
            context = (lengths + 1 + grown[:-1]).mean(axis=1)
            # Who stops for lack of confidence has asked for one more draft.
            passes = np.minimum(drafted + 1, policy.first()) if policy.confidence else drafted
            times = self._times.steps(round.batch_size, drafted, context, passes)
            spent += list(times)
            elapsed = np.cumsum(times)
            for place, course in enumerate(courses):
                count = len(course.drafted)
                tpots.append(ratio(elapsed[count - 1], grown[count, place]) if count else math.nan)
            walls.append((len(traces) + grown[-1].sum(), prefill + float(elapsed[-1:].sum())))
        emitted_tokens, wall = np.mean(walls, axis=0)
        requests = [self._of(round.domain, prompt.id, policy) for prompt in round.prompts]
        step = ratio(sum(spent), len(spent))
        return _Group(requests, tpots, float(emitted_tokens), float(wall), step)

    def _of(self, domain: str, prompt: str, policy: DraftLengthPolicy) -> Expected:
        key = (domain, prompt, repr(policy))
        if key not in self._expected:
            trace = self._traces[domain, prompt]
            self._expected[key] = expected_rounds(trace, policy, wanted=self._wanted)
        return self._expected[key]


def _ratios(plain: _Group, run: _Group) -> list[float]:
    return _defined(
        [ratio(before, tpot) for before, tpot in zip(_repeated(plain, run), run.tpots, strict=True)]
    )


def _repeated(plain: _Group, run: _Group) -> list[float]:
    """Plain decoding has one course, which each of the run's is held against."""
    return [*plain.tpots] * (len(run.tpots) // len(plain.tpots))


def _by_chance(trace: DraftTrace) -> bool:
    return bool(((trace.accept > 0) & (trace.accept < 1)).any())


def _going_on(counts: NDArray[np.int64], steps: int) -> NDArray[np.int64]:  # [steps]
    """A request runs on beyond its record, until the slowest is done; about as it went so far."""
    return np.resize(counts, steps) if len(counts) else np.zeros(steps, dtype=np.int64)


def _defined(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
