"""What a trace asks of a drafter: how often its drafts would stand over a text that is known.

The text is the target's own. Under speculative sampling a token at a draft slot was an accepted
draft with probability min(1, q(y) / p(y)), whatever happened at the other slots; greedy decoding is
the special case [the draft's choice = y]. So one reading of the text tells what every draft length
would have done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from toolkit.speculation.trees import MAX_INDEX

if TYPE_CHECKING:
    from toolkit.speculation.interfaces import SamplingParams


UNRANKED = MAX_INDEX + 1


@dataclass(frozen=True)
class TracedText:
    """A prompt and what the target answered."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]  # [T], T >= 2; the first token comes from prefill
    sampling: SamplingParams
    # [T] the target's probability of each output token; None: greedy.
    target_probs: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class DraftTrace:
    """What becomes of a draft from every place where a verify step may start.

    N = T - 1 starts; the draft from start i begins at output token i + 1.
    """

    accept: NDArray[np.float64]  # [N, D] P(depth d stands | all before it stood); 0 past the end
    offered: NDArray[np.int64]  # [N] tokens drafted there when D are asked for
    # [N, D] the true token's rank for the drafter at each depth, after the true ones before it;
    # UNRANKED: in no tree. None: the drafter draws no tree by rank.
    ranks: NDArray[np.int64] | None = None
    # [N, D] how sure the drafter is of each draft before it chooses it. Its drafts go on as in the
    # loop, greedy ones after those that fail too; sampled ones are taken to go on as after the
    # true tokens, which decides what is accepted and is a guess of what else is drafted. None: it
    # does not know, or was not asked.
    sure: NDArray[np.float64] | None = None

    def stopping_below(self, confidence: float) -> DraftTrace:
        """As it is where drafts end before one that the drafter is less sure of."""
        if not confidence:
            return self
        if self.sure is None:
            raise ValueError("this trace does not know how sure the drafter is")
        goes_on = np.cumprod(self.sure >= confidence, axis=1).sum(axis=1)
        return replace(self, offered=np.minimum(self.offered, goes_on))


class Tracer(Protocol):
    """What reads a text as a drafter would have."""

    @property
    def has_confidence(self) -> bool: ...

    def trace(self, text: TracedText, depth: int, least: float | None = None) -> DraftTrace:
        """From every start in `text`; see `Drafter.trace`."""
        ...


def by_position(
    accept: NDArray[np.float64],  # [N] P(a draft of output token i + 1 stands), from any start
    depth: int,
) -> NDArray[np.float64]:  # [N, D]
    """The chances of every start, where a draft does not depend on where it started."""
    padded = np.concatenate([accept, np.zeros(depth)])
    return sliding_window_view(padded, depth)[: len(accept)].copy()


def chance_to_stand(
    drafted: NDArray[np.float64],  # [N] q: the draft's probability of the true token
    target: NDArray[np.float64],  # [N] p: the target's
) -> NDArray[np.float64]:  # [N]
    """min(1, q / p); rounding may leave p at 0, and then any q above it stands."""
    stands = (drafted >= target) & (drafted > 0)
    ratio = np.divide(drafted, target, out=np.zeros_like(drafted), where=target > 0)
    return np.where(stands, 1.0, ratio)
