"""How many tokens to draft in the next verify step of one request.

A policy sees only what was accepted. It must not look at draft tokens that were thrown away, nor
decide after drawing a token whether to keep it: both would bias the output. With target (1/2, 1/2)
and draft (9/10, 1/10), keeping only tokens that the draft gives 1/2 emits (11/20, 9/20).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from toolkit.recipe.schema import DraftLength, Speculation
from toolkit.speculation.interfaces import SpeculationStats
from toolkit.speculation.throughput import StepCosts, best_lengths, predicted_acceptance


class Drafting(Protocol):
    """What a policy sees of a request."""

    @property
    def draft_len(self) -> int: ...

    @property
    def stats(self) -> SpeculationStats: ...


class DraftLengthPolicy(ABC):
    """Stateless: the whole state of a request is its current draft_len."""

    @classmethod
    @abstractmethod
    def of(cls, options: Speculation) -> DraftLengthPolicy:
        """The policy as the recipe describes it."""

    @abstractmethod
    def first(self) -> int:
        """The draft_len of a request's first verify step."""

    def now(self, draft_len: int, active: int) -> int:
        """The length to use while `active` requests, this one included, share the target."""
        return draft_len

    def plan(self, requests: Sequence[Drafting], active: int) -> list[int]:
        """The lengths of the requests that draft in one step, for policies that weigh them up.

        `active` counts those that share the step without a draft, too.
        """
        return [self.now(request.draft_len, active) for request in requests]

    @property
    def confidence(self) -> float:
        """Stop drafting where the drafter is less sure than this; see DraftRequest."""
        return 0.0

    @abstractmethod
    def following(self, draft_len: int, drafted: int, accepted: int) -> int:
        """The next draft_len, after `accepted` of `drafted` tokens stood (drafted <= draft_len)."""


@dataclass(frozen=True)
class Fixed(DraftLengthPolicy):
    """Always the same; 0 is plain decoding."""

    draft_len: int

    @classmethod
    def of(cls, options: Speculation) -> Fixed:
        return cls(options.max_depth)

    def first(self) -> int:
        return self.draft_len

    def following(self, draft_len: int, drafted: int, accepted: int) -> int:
        return self.draft_len


@dataclass(frozen=True)
class Adaptive(DraftLengthPolicy):
    """Two more after full acceptance, one less when fewer than half of the draft stood."""

    min_draft_len: int
    max_draft_len: int

    @classmethod
    def of(cls, options: Speculation) -> Adaptive:
        return cls(min(options.draft_length.min, options.max_depth), options.max_depth)

    def section(self) -> DraftLength:
        """What a recipe says for it, besides max_draft_len."""
        return DraftLength(policy="adaptive", min=self.min_draft_len)

    def to_json(self) -> dict[str, Any]:
        return {"name": "adaptive", **asdict(self)}

    def __str__(self) -> str:
        return f"adaptive {self.min_draft_len} to {self.max_draft_len}"

    def first(self) -> int:
        return (self.min_draft_len + self.max_draft_len) // 2

    def following(self, draft_len: int, drafted: int, accepted: int) -> int:
        if drafted == 0:
            return draft_len  # nothing was proposed, so nothing was learnt
        if accepted == drafted:
            # A proposal cut short by its drafter or by the end of the output says less.
            return min(max(draft_len, drafted + 2), self.max_draft_len)
        if 2 * accepted < drafted:
            return max(draft_len - 1, self.min_draft_len)
        return draft_len


@dataclass(frozen=True)
class Confidence(DraftLengthPolicy):
    """As long as the drafter is sure: it stops before the first token that it would only guess.

    Whether to draw a token is decided by the distribution that it would be drawn from, which only
    depends on tokens that are kept. Its length must not follow what was accepted of earlier
    drafts, for these lengths tell of tokens that were thrown away.
    """

    max_draft_len: int
    threshold: float

    @classmethod
    def of(cls, options: Speculation) -> Confidence:
        return cls(options.max_depth, options.draft_length.threshold)

    def section(self) -> DraftLength:
        """What a recipe says for it, besides max_draft_len."""
        return DraftLength(policy="confidence", threshold=self.threshold)

    def to_json(self) -> dict[str, Any]:
        return {"name": "confidence", **asdict(self)}

    def __str__(self) -> str:
        return f"confidence {self.threshold:g} up to {self.max_draft_len}"

    @property
    def confidence(self) -> float:
        return self.threshold

    def first(self) -> int:
        return self.max_draft_len

    def following(self, draft_len: int, drafted: int, accepted: int) -> int:
        return draft_len


@dataclass(frozen=True)
class Schedule(DraftLengthPolicy):
    """By load: what pays for one request may not pay for eight, so the length follows the batch."""

    steps: tuple[tuple[int, int], ...]  # (from this many active requests on, draft_len), ascending

    @classmethod
    def of(cls, options: Speculation) -> Schedule:
        return cls(tuple((e.batch, e.draft_len) for e in options.draft_length.schedule))

    def first(self) -> int:
        return max(length for _, length in self.steps)

    def now(self, draft_len: int, active: int) -> int:
        reached = [length for batch, length in self.steps if batch <= active]
        # Fewer requests than any entry names: the smallest batch is the nearest measurement.
        return reached[-1] if reached else self.steps[0][1]

    def following(self, draft_len: int, drafted: int, accepted: int) -> int:
        return draft_len


@dataclass(frozen=True)
class Throughput(DraftLengthPolicy):
    """By what a step costs and what each request's drafts were worth; see throughput.py."""

    max_draft_len: int
    costs: StepCosts
    min_speed: float

    @classmethod
    def of(cls, options: Speculation) -> Throughput:
        entries = options.draft_length.step_times
        points = {(e.batch, e.draft_len): (e.ms, e.draft_ms) for e in entries}
        return cls(options.max_depth, StepCosts(points), options.draft_length.min_speed)

    def first(self) -> int:
        return self.max_draft_len

    def plan(self, requests: Sequence[Drafting], active: int) -> list[int]:
        others = max(active - len(requests), 0)
        acceptance = [predicted_acceptance(request.stats) for request in requests]
        lengths = best_lengths(
            [*acceptance, *[0.0] * others],
            [*[self.max_draft_len] * len(requests), *[0] * others],
            self.costs.of(max(active, len(requests))),
            min_speed=self.min_speed,
        )
        return lengths[: len(requests)]

    def following(self, draft_len: int, drafted: int, accepted: int) -> int:
        return draft_len


def batch_ranges(
    steps: Sequence[tuple[int, int]],  # (from this batch size on, draft_len), ascending
    largest: int,  # batch size
) -> list[tuple[int, int, int]]:
    """(first, last, draft_len) without gaps from batch 1 to the largest."""
    ends = [batch - 1 for batch, _ in steps[1:]] + [max(largest, steps[-1][0])]
    starts = [1, *(batch for batch, _ in steps[1:])]
    return [(a, b, n) for a, b, (_, n) in zip(starts, ends, steps, strict=True)]


POLICIES: Mapping[str, type[DraftLengthPolicy]] = {
    "fixed": Fixed,
    "adaptive": Adaptive,
    "confidence": Confidence,
    "schedule": Schedule,
    "throughput": Throughput,
}


def draft_length_policy(options: Speculation) -> DraftLengthPolicy:
    """The policy that a recipe's `speculation.draft_length` names."""
    return POLICIES[options.draft_length.policy].of(options)
