"""Exact expectations of speculative decoding over a traced text, for any draft-length policy.

A dynamic program over (output position, draft length). With the drafts' chances r_i of a text and
a fixed k it is the recursion over s_j, the probability that j drafts of the current round stood:
a round starts at a position with probability s_0, the draft at position i stands with r_i, and

    s'_(j+1) = s_j r_i  for j < k        s'_0 = sum over j < k of s_j (1 - r_i) + s_k

Here a round is followed from its start to its end, so that the chances may depend on where it
started (lookup) and the next draft length on what was accepted (adaptive).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.draft_length import DraftLengthPolicy
from toolkit.speculation.trace import DraftTrace


@dataclass(frozen=True)
class Expected:
    """Expected counts of one request; those of several requests add."""

    tokens: float  # emitted by verify steps: the prefill token does not count
    verify_steps: float
    drafted: float
    accepted_by_position: NDArray[np.float64]  # [D] steps whose first d + 1 drafts all stood

    @property
    def accepted(self) -> float:
        return float(self.accepted_by_position.sum())

    @property
    def acceptance_length(self) -> float:
        return 1 + self.accepted / self.verify_steps if self.verify_steps else float("nan")


def expected_rounds(
    trace: DraftTrace,  # N starts, D depths
    policy: DraftLengthPolicy,  # of at most D draft tokens
    *,
    wanted: int | None = None,  # no round starts once so many tokens came; None: N
    limited: bool = False,  # no draft reaches beyond N - 1: the bonus token must fit
) -> Expected:
    """What decoding this text takes, in the mean over everything that chance decides.

    Where the text ends, a round ends: with `limited` as a request that reaches max_tokens, else as
    one whose last token is a stop token.
    """
    trace = trace.stopping_below(policy.confidence)
    length, depth = trace.accept.shape
    starts = length if wanted is None else min(wanted, length)
    visits: list[dict[int, float]] = [{} for _ in range(length + 1)]  # [N + 1] draft_len -> P
    visits[0][policy.first()] = 1.0
    tokens = verify_steps = drafts = 0.0
    by_position = np.zeros(depth)
    for start in range(starts):
        left = length - start
        for draft_len, reached in visits[start].items():
            drafted = min(draft_len, int(trace.offered[start]), left - 1 if limited else draft_len)
            verify_steps += reached
            drafts += reached * drafted
            stood = reached  # P(the round starts here and its first drafts stood)
            for accepted in range(min(drafted, left) + 1):
                # What does not stand is recovered; a whole draft is followed by the bonus token,
                # unless the text is over.
                r = trace.accept[start, accepted] if accepted < min(drafted, left) else 0.0
                ends = stood * (1.0 - r)
                emitted = min(accepted + 1, left)
                tokens += ends * emitted
                if ends > 0.0:
                    following = policy.following(draft_len, drafted, accepted)
                    place = visits[start + emitted]
                    place[following] = place.get(following, 0.0) + ends
                stood *= r
                if stood == 0.0:
                    break
                by_position[accepted] += stood
    return Expected(tokens, verify_steps, drafts, by_position)


@dataclass(frozen=True)
class Played:
    """One course that a request may take: what each of its verify steps drafts and emits."""

    drafted: NDArray[np.int64]  # [S]
    emitted: NDArray[np.int64]  # [S]


def play(
    trace: DraftTrace,
    policy: DraftLengthPolicy,
    rng: np.random.Generator,
    *,
    wanted: int | None = None,  # as in `expected_rounds`
) -> Played:
    """Decode the text once, with dice where chance decides; greedy texts have one course."""
    trace = trace.stopping_below(policy.confidence)
    length = len(trace.accept)
    place, draft_len = 0, policy.first()
    steps: list[tuple[int, int]] = []
    while place < (length if wanted is None else min(wanted, length)):
        drafted, left = min(draft_len, int(trace.offered[place])), length - place
        chances = trace.accept[place, : min(drafted, left)]
        refused = np.flatnonzero(rng.random(len(chances)) >= chances)
        accepted = int(refused[0]) if len(refused) else len(chances)
        emitted = min(accepted + 1, left)
        steps.append((drafted, emitted))
        draft_len = policy.following(draft_len, drafted, accepted)
        place += emitted
    counts = np.array(steps, dtype=np.int64).reshape(-1, 2)
    return Played(counts[:, 0], counts[:, 1])


def add(parts: list[Expected]) -> Expected:
    """The counts of several requests together."""
    return Expected(
        tokens=sum(part.tokens for part in parts),
        verify_steps=sum(part.verify_steps for part in parts),
        drafted=sum(part.drafted for part in parts),
        accepted_by_position=np.sum([part.accepted_by_position for part in parts], axis=0),
    )


def tokens_per_step(a: float, k: int) -> float:
    """Where every draft stands with the same probability a: (1 - a^(k + 1)) / (1 - a)."""
    return float(k + 1) if a == 1.0 else (1 - a ** (k + 1)) / (1 - a)
