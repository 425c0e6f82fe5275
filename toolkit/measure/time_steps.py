"""Measuring the table of step times, on the loaded models in the loop that serves.

Only there everything is paid. Draft lengths take turns within a prefill and batch sizes take turns
over the run, so that a disturbance hits all of them. It only ever adds time, for seconds or for
minutes, and then to the steps of some points more than to those of others; so a point is the lowest
decile of its samples, measuring ends when two visits to every point agree on the least it takes,
and the whole table is raised by what the median sample takes over its point.

Drafts are replaced by random tokens of the length that was asked for: what is timed is a draft of
that length, while how long drafts really are, and what stands of them, the trace knows. Nearly all
are refused, so that little is generated and contexts stay as long as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from toolkit.measure.step_times import StepTime, StepTimes
from toolkit.recipe.schema import Speculation
from toolkit.speculation.draft_length import DraftLengthPolicy
from toolkit.speculation.interfaces import (
    Drafter,
    DraftRequest,
    LanguageModel,
    Proposal,
    SamplingParams,
    Step,
    StepOutput,
)
from toolkit.speculation.loop import SpeculativeLoop
from toolkit.speculation.request import Request

# Steps of one draft length in a row: the first pays for the change, the others do not.
IN_A_ROW = 3
TURNS = 2  # of every draft length after one prefill; one is enough for
LARGE = 4  # requests or more: their steps are long, and steadier
MIN_ROUNDS, MAX_ROUNDS = 4, 8  # the shorter and the longer context in turns
FLOOR = 0.1  # the quantile of a point's samples that disturbances leave alone
TIGHT = 0.03  # of a step: what two visits may find different


def draft_lengths(longest: int) -> list[int]:
    """Which to measure; the rest lies between them.

    Kernels work in tiles, so a pass over 18 tokens can take a quarter longer than one over 16: with
    every power of two goes the length before it, whose tokens fill the last tile.
    """
    edges = [2**i - below for i in range(longest.bit_length()) for below in (1, 0)]
    return sorted({0, *(edge for edge in edges if edge <= longest), longest})


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
    target: LanguageModel,
    drafter: Callable[[], Drafter],
    *,
    text: Sequence[int],  # real tokens to fill contexts with
    batches: Sequence[int],
    longest: int,  # draft
    contexts: tuple[int, int],  # the shorter first
    sampling: SamplingParams,
    lengths: Sequence[int] = (),  # of drafts; empty: a few up to the longest
    rounds: tuple[int, int] = (MIN_ROUNDS, MAX_ROUNDS),
    clock: Callable[[], int] = perf_counter_ns,
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
            bench = _Bench(target, drafter(), clock)
            first = _prompts(text, batch, context, count)
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
    """A loop over the models whose parts are timed."""

    def __init__(self, target: LanguageModel, drafter: Drafter, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._target = _TimedTarget(target, clock)
        self._drafter = _TimedDrafter(drafter, clock, target.vocab_size)
        self._max_seq_len = target.max_seq_len
        self._grown = self._emitted = 0  # tokens of the longest request, of all that were emitted

    def run(
        self,
        prompts: Iterator[tuple[int, ...]],
        found: Mapping[int, _Samples],
        sampling: SamplingParams,
        rng: np.random.Generator,
    ) -> tuple[int, int]:
        """Add samples of every draft length; returns nanoseconds of prefill and tokens emitted."""
        policy = _Steered(max(found))
        texts = list(prompts)
        loop = SpeculativeLoop(
            self._target, self._drafter, policy, max_prefill_tokens=sum(map(len, texts))
        )
        try:
            for text in texts:
                loop.submit(Request(text, self._max_seq_len, sampling))
            start = self._clock()
            loop.step()
            prefill = self._clock() - start
            self._grown = len(texts[0]) + 1
            lengths = list(found)
            turns = TURNS if len(texts) < LARGE else 1
            for length in [int(n) for _ in range(turns) for n in rng.permutation(lengths)]:
                policy.draft_len = length
                if self._grown + IN_A_ROW * (length + 1) + max(found) >= self._max_seq_len:
                    break
                self._row(loop, found[length])
            for samples in found.values():
                samples.end_visit()
            return prefill, self._emitted
        finally:
            loop.close()

    def _row(self, loop: SpeculativeLoop, found: _Samples) -> None:
        """Steps of one draft length: the first for the change, the others for the length."""
        first = self._step(loop)
        times: list[int] = []
        for _ in range(IN_A_ROW - 1):
            context = self._grown
            times.append(self._step(loop))
            found.verify.append(self._target.ns)
            found.draft.append(self._drafter.ns)
            found.contexts.append(context)
        found.total += times
        found.changes.append(first - median(times))

    def _step(self, loop: SpeculativeLoop) -> int:
        """Nanoseconds; the context grows by the most tokens that a request emitted."""
        self._target.ns = self._drafter.ns = 0
        start = self._clock()
        chunks = loop.step()
        took = self._clock() - start
        self._grown += max(len(chunk.tokens) for chunk in chunks)
        self._emitted += sum(len(chunk.tokens) for chunk in chunks)
        return took


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


class _TimedTarget:
    """The target, counting the time of its forward passes."""

    def __init__(self, model: LanguageModel, clock: Callable[[], int]) -> None:
        self._model, self._clock, self.ns = model, clock, 0
        self.vocab_size, self.max_seq_len = model.vocab_size, model.max_seq_len
        self.max_batch_size = model.max_batch_size
        self.open, self.close, self.length = model.open, model.close, model.length
        self.truncate, self.keep = model.truncate, model.keep
        self.kv_capacity, self.kv_usage = model.kv_capacity, model.kv_usage

    def adopt(self, seq: int, tokens: Sequence[int]) -> int:
        return 0  # what was read before must not flatter what is timed now

    def share(self, seq: int, tokens: Sequence[int]) -> None:
        pass

    def forward(self, steps: Sequence[Step]) -> list[StepOutput]:
        start = self._clock()
        try:
            return self._model.forward(steps)
        finally:
            self.ns += self._clock() - start


class _TimedDrafter(Drafter):
    """A drafter, counting the time of its proposals, each of the length that was asked for."""

    def __init__(self, drafter: Drafter, clock: Callable[[], int], vocab_size: int) -> None:
        self._drafter, self._clock, self.ns = drafter, clock, 0
        self._vocab_size, self._rng = vocab_size, np.random.default_rng(0)
        vars(self)["reads_hidden"] = drafter.reads_hidden  # a class variable, of whom it wraps

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, LanguageModel]) -> Drafter:
        raise TypeError("made around a drafter, not from a recipe")

    def begin(self, seq: int, prompt: Sequence[int]) -> None:
        self._drafter.begin(seq, prompt)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        start = self._clock()
        proposals = self._drafter.propose(requests)
        self.ns += self._clock() - start
        return [self._refused(*pair) for pair in zip(requests, proposals, strict=True)]

    def _refused(self, request: DraftRequest, proposal: Proposal) -> Proposal:
        """Nearly always; chains that were sampled and trees stay as they are."""
        if proposal.probs is not None or proposal.parents is not None:
            return proposal
        return Proposal(self._rng.integers(0, self._vocab_size, request.draft_len).tolist())

    def observe(self, seq: int, hidden: NDArray[np.float32]) -> None:
        self._drafter.observe(seq, hidden)

    def accept(self, seq: int, tokens: Sequence[int], accepted: int) -> None:
        self._drafter.accept(seq, tokens, accepted)

    def end(self, seq: int) -> None:
        self._drafter.end(seq)
