"""The measuring plan: rounds of one group of prompts through plain decoding and every k.

Within a round all draft lengths meet the same prompts within seconds, in random order, so a drift
of the machine hits the baseline and the rest alike and every speed-up is a paired ratio. No prompt
occurs twice at one point (domain, batch, k). Orders depend on the seed and the round alone: a
resumed run goes on exactly as the interrupted one would have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.measure.records import GroupRun
from toolkit.measure.run import Conditions, EncodedPrompt, Loop, measure_group
from toolkit.store import digest

PLAIN = 0
_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Round:
    """`batch_size` prompts of one domain."""

    domain: str
    batch_size: int
    prompts: tuple[EncodedPrompt, ...]

    @property
    def key(self) -> str:
        """What makes it the same round in another run: batch size and prompts."""
        tokens = [prompt.tokens for prompt in self.prompts]
        return digest({"domain": self.domain, "batch": self.batch_size, "tokens": tokens})[:16]

    @property
    def name(self) -> str:
        return f"{self.domain}, batch {self.batch_size}"


@dataclass(frozen=True)
class Grid:
    """What is measured: draft lengths by batch sizes by domains."""

    ks: tuple[int, ...]
    batches: tuple[int, ...]
    domains: Mapping[str, Sequence[EncodedPrompt]]
    seed: int = 0

    def rounds(self) -> list[Round]:
        """In random order, yet so that every (domain, batch) is spread evenly over the run."""
        rng = np.random.default_rng(self.seed)
        timed: list[tuple[float, Round]] = []
        for domain, prompts in self.domains.items():
            for batch in self.batches:
                count = len(prompts) // batch
                starts = [prompts[i * batch : (i + 1) * batch] for i in range(count)]
                for place, index in enumerate(rng.permutation(count)):
                    when = (place + rng.random()) / count
                    timed.append((when, Round(domain, batch, tuple(starts[index]))))
        return [round for _, round in sorted(timed, key=lambda pair: pair[0])]

    def lengths(self, batch: int) -> tuple[int, ...]:
        """The draft lengths that are measured at one batch size."""
        return self.ks

    def order(self, round: Round) -> list[int]:
        """Plain decoding and every k, shuffled for this round."""
        rng = np.random.default_rng([self.seed, int(round.key, 16)])
        return [int(k) for k in rng.permutation([PLAIN, *self.lengths(round.batch_size)])]

    def settled(self, round: Round, done: Mapping[str, Sequence[GroupRun]]) -> bool:
        """Whether the rounds that are done make this one needless; an exhaustive grid has none."""
        return False

    def left_over(self, domain: str, batch: int) -> int:
        """Prompts that do not fill a last group, and so stay out."""
        return len(self.domains[domain]) % batch


def measure_round(
    loop: Loop,
    grid: Grid,
    round: Round,
    conditions: Conditions,
    clock: Callable[[], int],
) -> list[GroupRun]:
    """Every draft length over the round's prompts."""
    return [
        measure_group(loop, round.prompts, k=k, round=round.key, conditions=conditions, clock=clock)
        for k in grid.order(round)
    ]


def warm_up(loop: Loop, grid: Grid, prompt: EncodedPrompt, conditions: Conditions) -> None:
    """Touch every (batch, k) once, unrecorded: first calls allocate and compile."""
    short = Conditions(
        max_tokens=min(_WARM_UP_TOKENS, conditions.max_tokens),
        sampling=conditions.sampling,
        stop_tokens=conditions.stop_tokens,
    )
    for batch in grid.batches:
        for k in (PLAIN, *grid.lengths(batch)):
            measure_group(loop, [prompt] * batch, k=k, round="warm-up", conditions=short)


def missing(rounds: Sequence[Round], done: Mapping[str, object]) -> Iterator[Round]:
    """The rounds that an earlier run did not get to."""
    return (round for round in rounds if round.key not in done)
