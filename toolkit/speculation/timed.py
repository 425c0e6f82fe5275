"""A decoding loop that says what its steps spent on verifying and on drafting.

Its drafts are replaced by random tokens of the length that was asked for: what is timed is a draft
of that length, while how long drafts really are, and what stands of them, a trace knows. Nearly all
are refused, so that little is generated and contexts stay as long as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from toolkit.recipe.schema import Speculation
from toolkit.speculation.draft_length import DraftLengthPolicy
from toolkit.speculation.generation import GenerationLoop
from toolkit.speculation.interfaces import (
    Drafter,
    DraftRequest,
    LanguageModel,
    Proposal,
)
from toolkit.speculation.loop import SpeculativeLoop
from toolkit.speculation.request import Chunk

Clock = Callable[[], int]
P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Nanoseconds that passed inside it, added up."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._start, self.ns = clock, 0, 0

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *error: object) -> None:
        self.ns += self._clock() - self._start

    def around(self, call: Callable[P, R]) -> Callable[P, R]:
        """The same call, timed."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return call(*args, **kwargs)

        return timed


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step of the loop, in nanoseconds."""

    chunks: list[Chunk]
    total_ns: int
    verify_ns: int  # the target's forward pass
    draft_ns: int


@dataclass(frozen=True)
class TimedLoop:
    """A loop over models that count their time."""

    loop: GenerationLoop
    verifying: Stopwatch
    drafting: Stopwatch
    clock: Clock

    def step(self) -> TimedStep:
        self.verifying.ns = self.drafting.ns = 0
        start = self.clock()
        chunks = self.loop.step()
        total = self.clock() - start
        return TimedStep(chunks, total, self.verifying.ns, self.drafting.ns)


class RandomDrafts:
    """Tokens to be refused, drawn from the whole vocabulary."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size, self._rng = vocab_size, np.random.default_rng(0)

    def __call__(self, draft_len: int) -> list[int]:
        drawn: list[int] = self._rng.integers(0, self._vocab_size, draft_len).tolist()
        return drawn


def timed_loop(
    target: LanguageModel,
    drafter: Drafter,
    policy: DraftLengthPolicy,
    *,
    max_prefill_tokens: int,
    clock: Clock = perf_counter_ns,
) -> TimedLoop:
    """The loop that serves, over loaded models."""
    verifying, drafting = Stopwatch(clock), Stopwatch(clock)
    loop = SpeculativeLoop(
        _TimedTarget(target, verifying),
        _TimedDrafter(drafter, drafting, RandomDrafts(target.vocab_size)),
        policy,
        max_prefill_tokens=max_prefill_tokens,
    )
    return TimedLoop(loop, verifying, drafting, clock)


class _TimedTarget:
    """The target, counting the time of its forward passes."""

    def __init__(self, model: LanguageModel, watch: Stopwatch) -> None:
        self.forward = watch.around(model.forward)
        self.vocab_size, self.max_seq_len = model.vocab_size, model.max_seq_len
        self.max_batch_size = model.max_batch_size
        self.open, self.close, self.length = model.open, model.close, model.length
        self.truncate, self.keep = model.truncate, model.keep
        self.kv_capacity, self.kv_usage = model.kv_capacity, model.kv_usage

    def adopt(self, seq: int, tokens: Sequence[int]) -> int:
        return 0  # what was read before must not flatter what is timed now

    def share(self, seq: int, tokens: Sequence[int]) -> None:
        pass


class _TimedDrafter(Drafter):
    """A drafter, counting the time of its proposals, each of the length that was asked for."""

    def __init__(self, drafter: Drafter, watch: Stopwatch, refused: RandomDrafts) -> None:
        self._drafter, self._watch, self._refused = drafter, watch, refused
        vars(self)["reads_hidden"] = drafter.reads_hidden  # a class variable, of whom it wraps

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, LanguageModel]) -> Drafter:
        raise TypeError("made around a drafter, not from a recipe")

    def begin(self, seq: int, prompt: Sequence[int]) -> None:
        self._drafter.begin(seq, prompt)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        with self._watch:
            proposals = self._drafter.propose(requests)
        return [self._instead(*pair) for pair in zip(requests, proposals, strict=True)]

    def _instead(self, request: DraftRequest, proposal: Proposal) -> Proposal:
        """Chains that were sampled and trees stay as they are."""
        if proposal.probs is not None or proposal.parents is not None:
            return proposal
        return Proposal(self._refused(request.draft_len))

    def observe(self, seq: int, hidden: NDArray[np.float32]) -> None:
        self._drafter.observe(seq, hidden)

    def accept(self, seq: int, tokens: Sequence[int], accepted: int) -> None:
        self._drafter.accept(seq, tokens, accepted)

    def end(self, seq: int) -> None:
        self._drafter.end(seq)
