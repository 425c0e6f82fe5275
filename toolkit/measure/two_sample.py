"""Do two sets of continuations come from one distribution? A permutation test over whole texts.

Tokens of one text depend on each other, so counts of tokens follow no textbook distribution. Whole
texts of one prompt, each drawn with a seed of its own, are exchangeable when both sides have the
same distribution, and that is all a permutation test needs: its false-alarm rate is exact for any
number of texts and any statistic. Permuting happens within a prompt, so prompts may differ.

The statistic is the squared maximum mean discrepancy of two string kernels, as in Gao, Liang and
Guestrin, "Model Equality Testing" (ICLR 2025, arXiv:2410.20247), who found it far more powerful on
samples of language models than tests on counts, which most tokens are too rare for:

    placed      how many places of two texts hold the same token: marginals of every position
    successive  how many pairs of neighbours two texts share, wherever they stand: the next token
                given the one before it

Each of the two has half of the false-alarm rate (Bonferroni). p = (exceedances + 1) / (permutations
+ 1) never understates (Phipson and Smyth 2010), and drawing ends early once it is clearly large
(Besag and Clifford 1991), which keeps the rate exact too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Statistic = Callable[[Floats], Floats]  # [P, N] how texts are dealt to the two sides -> [P]
Text = Sequence[Hashable]  # its tokens, or its characters
_ENOUGH = 20  # exceedances after which the p-value is large for certain
_RESOLUTION = 2  # the smallest p-value is this many times below what would be an alarm
_AT_ONCE = 250
_ROUNDING = 1e-6  # of the sum of what cancels: float32 over many texts


@dataclass(frozen=True)
class Group:
    """Continuations of one prompt, each drawn with its own seed."""

    one: Sequence[Text]
    other: Sequence[Text]


@dataclass(frozen=True)
class TwoSample:
    """What the test says; `alpha` is the false-alarm rate of all statistics together."""

    alpha: float
    p_values: Mapping[str, float]  # by statistic
    texts: tuple[int, int]

    @property
    def p_value(self) -> float:
        """Of both statistics together."""
        return min(1.0, len(self.p_values) * min(self.p_values.values()))

    @property
    def differ(self) -> bool:
        return self.p_value <= self.alpha


def compare(groups: Sequence[Group], *, length: int, alpha: float, seed: int) -> TwoSample:
    """Test all prompts together; of a text count the first `length` tokens and its end."""
    sizes = [(len(group.one), len(group.other)) for group in groups]
    codes = _codes([text for group in groups for text in (*group.one, *group.other)], length)
    statistics = {"placed": _placed(codes, sizes), "successive": _successive(codes)}
    rng = np.random.default_rng(seed)
    each = alpha / len(statistics)
    return TwoSample(
        alpha,
        {name: _p_value(found, sizes, each, rng) for name, found in statistics.items()},
        (sum(one for one, _ in sizes), sum(other for _, other in sizes)),
    )


def _codes(texts: Sequence[Text], length: int) -> NDArray[np.int64]:  # [N, length]
    """Numbers for tokens; behind its end a text goes on with 0, so that lengths count too."""
    known: dict[Hashable, int] = {}
    rows = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(rows, texts, strict=True):
        found = [known.setdefault(token, len(known) + 1) for token in text[:length]]
        row[: len(found)] = found
    return rows


def _placed(
    codes: NDArray[np.int64],  # [N, length]
    sizes: Sequence[tuple[int, int]],
) -> Statistic:
    ends = np.cumsum([one + other for one, other in sizes])
    kinds = np.arange(codes.shape[1]) * (codes.max() + 1) + codes
    parts = [_discrepancy(_counts(block)) for block in np.split(kinds, ends[:-1])]
    return lambda signs: np.sum(
        [
            part(block)
            for part, block in zip(parts, np.split(signs, ends[:-1], axis=1), strict=True)
        ],
        axis=0,
    )


def _successive(
    codes: NDArray[np.int64],  # [N, length]
) -> Statistic:
    return _discrepancy(_counts(codes[:, :-1] * (codes.max() + 1) + codes[:, 1:]))


def _counts(
    kinds: NDArray[np.int64],  # [N, M]
) -> Floats:  # [N, F] how often each kind is in each row
    """An inner product of two rows is the kernel of two texts."""
    known, which, times = np.unique(kinds, return_inverse=True, return_counts=True)
    counts = np.zeros((len(kinds), len(known)), dtype=np.float32)
    np.add.at(counts, (np.arange(len(kinds))[:, None], which.reshape(kinds.shape)), 1)
    # What came once tells nothing about a difference, and is the most of a real vocabulary.
    return counts[:, times > 1]


def _discrepancy(
    counts: Floats,  # [N, F] of every text; an inner product of rows is the kernel of two texts
) -> Statistic:
    """Squared, given 1 / n for the texts of one side and -1 / n for those of the other."""
    if counts.shape[1] <= len(counts):
        return lambda signs: np.square(signs @ counts).sum(axis=1)
    kernel = counts @ counts.T
    return lambda signs: np.multiply(signs @ kernel, signs).sum(axis=1)


def _p_value(
    statistic: Statistic,
    sizes: Sequence[tuple[int, int]],
    alpha: float,
    rng: np.random.Generator,
) -> float:
    """Of the observed statistic among those of texts dealt anew to both sides of each prompt."""
    signs = [
        np.repeat(np.array([1 / one, -1 / other], dtype=np.float32), [one, other])
        for one, other in sizes
    ]
    asked = np.concatenate(signs)[None]
    # Equal but for rounding is an exceedance, and rounding goes with what is summed: of texts that
    # are all the same, sums cancel to nearly nothing, which must not look rare.
    summed = statistic(np.abs(asked))[0]
    observed = statistic(asked)[0] - _ROUNDING * summed
    most = math.ceil(_RESOLUTION / alpha)
    drawn = exceeded = 0
    while drawn < most:
        count = min(_AT_ONCE, most - drawn)
        dealt = [rng.permuted(np.tile(sign, (count, 1)), axis=1) for sign in signs]
        reached = np.cumsum(statistic(np.concatenate(dealt, axis=1)) >= observed)
        if exceeded + reached[-1] >= _ENOUGH:
            drawn += 1 + int(np.searchsorted(reached, _ENOUGH - exceeded))
            return _ENOUGH / drawn
        drawn, exceeded = drawn + count, exceeded + int(reached[-1])
    return (exceeded + 1) / (drawn + 1)
