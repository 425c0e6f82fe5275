"""Which draft tokens stand, and the one token that the target adds to them.

Words: an accepted token was drafted and stands; the recovered token replaces the first one that
does not; the bonus token follows when all stand. One of the last two always comes, so a verify
step emits accepted + 1 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.sampling import Floats, draw


def verify_greedy(
    draft_tokens: Sequence[int],  # [draft_len]
    target_tokens: Sequence[int],  # [draft_len + 1] the target's choice at each of those positions
) -> tuple[list[int], int]:
    """Accept the draft as far as the target would have chosen the same tokens."""
    accepted = 0
    while accepted < len(draft_tokens) and draft_tokens[accepted] == target_tokens[accepted]:
        accepted += 1
    return [*draft_tokens[:accepted], target_tokens[accepted]], accepted


def verify(
    draft_tokens: Sequence[int],  # [draft_len]
    draft_probs: Floats
    | Sequence[Floats]
    | None,  # [draft_len, V]; None: one-hot at the draft tokens
    target_probs: Floats | Sequence[Floats],  # [draft_len + 1, V]
    accept: Sequence[float],  # [draft_len] uniforms
    emit: Sequence[float],  # [draft_len + 1] uniforms, independent of those
) -> tuple[list[int], int]:
    """Accept a prefix of the draft, then emit one token from the target.

    The emitted sequence has exactly the target's distribution (Leviathan et al. 2023, alg. 1).
    Returns the new tokens and how many of them were drafted.
    """
    for i, token in enumerate(draft_tokens):
        target = target_probs[i]
        drafted_with = 1.0 if draft_probs is None else draft_probs[i][token]
        # Strict: with u = 0 a token of probability zero must still be refused.
        if not accept[i] * drafted_with < target[token]:
            draft = _one_hot(token, len(target)) if draft_probs is None else draft_probs[i]
            recovered = draw(residual(target, draft), emit[i])
            return [*draft_tokens[:i], recovered], i
    # Every draft token stood: the target's last row pays out a bonus token.
    bonus = draw(target_probs[-1], emit[-1])
    return [*draft_tokens, bonus], len(draft_tokens)


def residual(
    target: Floats,  # [V]
    draft: Floats,  # [V]
) -> Floats:  # [V], not normalised
    """The positive part of target - draft: what the draft proposes too seldom."""
    rest: Floats = np.maximum(target - draft, 0.0)
    # Empty only when both rows are equal up to rounding; then the target itself is the answer.
    return rest if rest.any() else target


def _one_hot(token: int, size: int) -> NDArray[np.float64]:
    row = np.zeros(size)
    row[token] = 1.0
    return row
