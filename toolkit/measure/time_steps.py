"""Measuring the table of step times, on the loaded models in the loop that serves.

Only there everything is paid. Draft lengths take turns within a prefill and batch sizes take turns
over the run, so that a disturbance hits all of them. It only ever adds time, for seconds or for
minutes, and then to the steps of some points more than to those of others; so a point is the lowest
decile of its samples, measuring ends when two visits to every point agree on the least it takes,
and the whole table is raised by what the median sample takes over its point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from toolkit.measure.step_times import StepTime, StepTimes
from toolkit.recipe.schema import Speculation
from toolkit.speculation.draft_length import DraftLengthPolicy
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import Request
from toolkit.speculation.timed import TimedLoop, TimedStep

# Of a policy, and of how many prompt tokens one step may read.
Loops = Callable[[DraftLengthPolicy, int], TimedLoop]

# Steps of one draft length in a row: the first pays for the change, the others do not.
IN_A_ROW = 3
TURNS = 2  # of every draft length after one prefill; one is enough for
LARGE = 4  # requests or more: their steps are long, and steadier
MIN_ROUNDS, MAX_ROUNDS = 4, 8  # the shorter and the longer context in turns
EVERY = 8  # draft length up to here is measured
FLOOR = 0.1  # the quantile of a point's samples that disturbances leave alone
TIGHT = 0.03  # of a step: what two visits may find different


def draft_lengths(longest: int) -> list[int]:
    """Which to measure; the rest lies between them.

    Kernels work in tiles, of 16 tokens on one processor and of 6 on another, so that a pass over
    one token more can take a quarter longer: short lengths are all measured, and with every power
    of two beyond them the length before it, whose tokens fill the last tile.
    """
    edges = [2**i - below for i in range(longest.bit_length()) for below in (1, 0)]
    known = [*range(EVERY + 1), *edges]
    return sorted({*(length for length in known if length <= longest), longest})


@dataclass
class _Samples:
    """Steps of one (batch, context, draft length), in order."""

    verify: list[float] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    contexts: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)  # first of a row, over the others' median
    lowest: list[float] = field(default_factory=list)  # total of each visit
    _ended: int = 0

    def end_visit(self) -> None:
        """A visit is what one prefill was good for."""
        if len(self.total) > self._ended:
            self.lowest.append(min(self.total[self._ended :]))
            self._ended = len(self.total)

    @property
    def settled(self) -> bool:
        """Two visits agree; what has no room for a visit waits for none."""
        return not self.lowest or (len(self.lowest) > 1 and self.spread <= TIGHT)

    @property
    def spread(self) -> float:
        """How far apart the two quickest visits are; 0: only one was made."""
        if len(self.lowest) < 2:
            return 0.0
        first, second = sorted(self.lowest)[:2]
        return second / first - 1


def measure_steps(
    loops: Loops,
    max_seq_len: int,
    *,
    text: Sequence[int],  # real tokens to fill contexts with
    batches: Sequence[int],
    longest: int,  # draft
    contexts: tuple[int, int],  # the shorter first
    sampling: SamplingParams,
    lengths: Sequence[int] = (),  # of drafts; empty: a few up to the longest
    rounds: tuple[int, int] = (MIN_ROUNDS, MAX_ROUNDS),
    advance: Callable[[float], None] = lambda rounds: None,
) -> StepTimes:
    """Rounds over all batch sizes until two visits agree at every point."""
    lengths = lengths or draft_lengths(longest)
    samples = {(b, c, d): _Samples() for b in batches for c in sorted(contexts) for d in lengths}
    prefill: dict[int, list[float]] = {batch: [] for batch in batches}
    rng = np.random.default_rng(sampling.seed)
    emitted = 0
    for count in range(rounds[1]):
        context = contexts[count % len(contexts)]
        for batch in map(int, rng.permutation(batches)):
            policy = _Steered(max(lengths))
            bench = _Bench(loops(policy, batch * context), policy, max_seq_len)
            first = list(_prompts(text, batch, context, count))
            found = {length: samples[batch, context, length] for length in lengths}
            took, tokens = bench.run(first, found, sampling, rng)
            prefill[batch].append(took / (batch * context))
            emitted += tokens
        advance(1)
        if count + 1 >= rounds[0] and all(found.settled for found in samples.values()):
            break
    samples = {place: found for place, found in samples.items() if found.total}
    floors = [(_floor(found.total), found.total) for found in samples.values()]
    pace = median([ns / floor for floor, total in floors for ns in total] or [1.0])
    points = tuple(_point(b, d, found, pace) for (b, _, d), found in samples.items())
    return StepTimes(
        points,
        {batch: median(times) for batch, times in prefill.items()},
        {
            batch: _change(found for (b, _, _), found in samples.items() if b == batch)
            for batch in batches
        },
        emitted,
    )


def _change(samples: Iterable[_Samples]) -> float:
    """What a step pays whose number of tokens is new."""
    return max(0.0, median([more for found in samples for more in found.changes] or [0.0]))


def _prompts(text: Sequence[int], batch: int, context: int, turn: int) -> Iterator[tuple[int, ...]]:
    """Stretches of the text that begin at different places."""
    for place in range(batch):
        start = (place + turn * batch) * 37 % len(text)
        yield tuple(text[(start + i) % len(text)] for i in range(context))


def _point(batch: int, drafted: int, found: _Samples, pace: float) -> StepTime:
    parts = zip(found.total, found.verify, found.draft, strict=True)
    overheads = [total - verify - draft for total, verify, draft in parts]
    return StepTime(
        batch_size=batch,
        drafted=drafted,
        context=round(float(np.mean(found.contexts))),
        samples=len(found.total),
        verify_ns=pace * _floor(found.verify),
        draft_ns=pace * _floor(found.draft),
        overhead_ns=pace * _floor(overheads),
        total_ns=pace * _floor(found.total),
        spread=found.spread,
    )


def _floor(times: Sequence[float]) -> float:
    return float(np.quantile(times, FLOOR))


class _Bench:
    """A timed loop, led through draft lengths."""

    def __init__(self, timed: TimedLoop, policy: _Steered, max_seq_len: int) -> None:
        self._timed, self._policy, self._max_seq_len = timed, policy, max_seq_len
        self._grown = self._emitted = 0  # tokens of the longest request, of all that were emitted

    def run(
        self,
        prompts: Sequence[tuple[int, ...]],
        found: Mapping[int, _Samples],
        sampling: SamplingParams,
        rng: np.random.Generator,
    ) -> tuple[int, int]:
        """Add samples of every draft length; returns nanoseconds of prefill and tokens emitted."""
        loop = self._timed.loop
        try:
            for prompt in prompts:
                loop.submit(Request(prompt, self._max_seq_len, sampling))
            prefill = self._timed.step().total_ns
            self._grown = len(prompts[0]) + 1
            turns = TURNS if len(prompts) < LARGE else 1
            for length in [int(n) for _ in range(turns) for n in rng.permutation(list(found))]:
                self._policy.draft_len = length
                if self._grown + IN_A_ROW * (length + 1) + max(found) >= self._max_seq_len:
                    break
                self._row(found[length])
            for samples in found.values():
                samples.end_visit()
            return prefill, self._emitted
        finally:
            loop.close()

    def _row(self, found: _Samples) -> None:
        """Steps of one draft length: the first for the change, the others for the length."""
        first = self._step().total_ns
        times: list[int] = []
        for _ in range(IN_A_ROW - 1):
            found.contexts.append(self._grown)
            step = self._step()
            times.append(step.total_ns)
            found.verify.append(step.verify_ns)
            found.draft.append(step.draft_ns)
        found.total += times
        found.changes.append(first - median(times))

    def _step(self) -> TimedStep:
        """The context grows by the most tokens that a request emitted."""
        step = self._timed.step()
        self._grown += max(len(chunk.tokens) for chunk in step.chunks)
        self._emitted += sum(len(chunk.tokens) for chunk in step.chunks)
        return step


@dataclass
class _Steered(DraftLengthPolicy):
    """The draft length of the step that is timed next."""

    longest: int
    draft_len: int = 0

    @classmethod
    def of(cls, options: Speculation) -> _Steered:
        return cls(options.max_draft_len)

    def first(self) -> int:
        return self.longest

    def now(self, draft_len: int, active: int) -> int:
        return self.draft_len

    def following(self, draft_len: int, drafted: int, accepted: int) -> int:
        return draft_len
