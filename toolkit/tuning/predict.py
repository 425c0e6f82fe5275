"""What every draft length will bring, from a trace and a table of step times.

TPOT of a request = its expected verify steps x the time of a step / its tokens. The time of a step
is that of the group it runs in: its batch size, how much its members draft, how long they are.
Predictions take the form of measured cells, so that the same rules choose and the same tables show
them; counts are expectations, rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from toolkit.measure.metrics import percentile, ratio
from toolkit.measure.prompts import ALL_DOMAINS
from toolkit.measure.step_times import StepTimes
from toolkit.measure.trace_rounds import Expected, add, expected_rounds
from toolkit.recipe.schema import Objective
from toolkit.speculation.draft_length import DraftLengthPolicy
from toolkit.speculation.trace import DraftTrace
from toolkit.tuning.grid import PLAIN, Round
from toolkit.tuning.intervals import quantile_interval, throughput_gain
from toolkit.tuning.summary import Cell

Traces = Mapping[tuple[str, str], DraftTrace]  # (domain, prompt id)


@dataclass(frozen=True)
class _Group:
    """A round at one draft length, as it will go."""

    requests: Sequence[Expected]
    step_ns: float
    prefill_ns: float

    def tpots(self) -> list[float]:
        """Per request; nan where nothing follows the first token."""
        return [ratio(r.verify_steps * self.step_ns, r.tokens) for r in self.requests]

    def emitted_and_wall(self) -> tuple[float, float]:
        """All requests run until the slowest is done."""
        steps = max(request.verify_steps for request in self.requests)
        rates = [ratio(r.tokens, r.verify_steps) for r in self.requests]
        tokens = sum(1 + rate * steps for rate in rates if not math.isnan(rate))
        return tokens, self.prefill_ns + steps * self.step_ns


class Predictor:
    """One drafter's traces over the grid's rounds, with the step times of one machine."""

    def __init__(
        self, traces: Traces, times: StepTimes, *, max_tokens: int, objective: Objective, seed: int
    ) -> None:
        self._traces, self._times = traces, times
        self._wanted, self._objective, self._seed = max_tokens - 1, objective, seed
        self._expected: dict[tuple[str, str, str], Expected] = {}

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
        tpots = [[_defined(group.tpots()) for group in domain] for domain in runs]
        everything = [tpot for domain in tpots for group in domain for tpot in group]
        joint = [ratio(value, total.verify_steps) for value in total.accepted_by_position[:k]]
        walls = [group.emitted_and_wall() for domain in runs for group in domain]
        gain = None
        if k != PLAIN and self._objective.metric == "output_throughput":
            gain = throughput_gain(
                [
                    [
                        (*run.emitted_and_wall(), *base.emitted_and_wall())
                        for run, base in zip(*pair, strict=True)
                    ]
                    for pair in zip(runs, plain, strict=True)
                ],
                rng,
            )
        elif k != PLAIN:
            ratios = [
                [_ratios(base, run) for run, base in zip(*pair, strict=True)]
                for pair in zip(runs, plain, strict=True)
            ]
            gain = quantile_interval(ratios, 1 - self._objective.percentile / 100, rng)
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
            output_throughput=_or_none(
                ratio(sum(t for t, _ in walls) * 1e9, sum(ns for _, ns in walls))
            ),
            speedup=gain,
        )

    def _group(self, round: Round, policy: DraftLengthPolicy) -> _Group:
        requests = [self._of(round.domain, prompt.id, policy) for prompt in round.prompts]
        together = add(requests)
        lengths = [len(prompt.tokens) for prompt in round.prompts]
        context = sum(lengths) / len(lengths) + together.tokens / len(requests) / 2
        step = self._times.at(
            round.batch_size, ratio(together.drafted, together.verify_steps or 1.0), context
        )
        prefill = self._times.prefill_ns[round.batch_size] * sum(lengths)
        return _Group(requests, step, prefill)

    def _of(self, domain: str, prompt: str, policy: DraftLengthPolicy) -> Expected:
        key = (domain, prompt, repr(policy))
        if key not in self._expected:
            trace = self._traces[domain, prompt]
            self._expected[key] = expected_rounds(trace, policy, wanted=self._wanted)
        return self._expected[key]


def _ratios(plain: _Group, run: _Group) -> list[float]:
    return _defined(list(map(ratio, plain.tpots(), run.tpots())))


def _defined(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
