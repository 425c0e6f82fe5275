"""The models behind drafting heads, as their drafters see them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.interfaces import LanguageModel


class FeatureHead(LanguageModel, Protocol):
    """A small decoder whose every `Step` has a feature beside each token; D is its vocabulary.

    Its logits [R, D] draft the token after the next: at (x[i+1], feature of x[0..i]) it says what
    x[i+2] may be. Its hidden states [T, h] are the features that the target would have given.
    """

    @property
    def target_ids(self) -> NDArray[np.int64]:  # [D]
        """The target's token for each of its own."""
        ...

    def fuse(self, captured: NDArray[np.float32]) -> NDArray[np.float32]:
        """The target's captured states [n, C * H] -> features [n, h]."""
        ...


class ParallelHeads(Protocol):
    """Heads that read the same state of the target and each draft a token one further ahead."""

    @property
    def target_ids(self) -> NDArray[np.int64]:  # [D]
        ...

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Final hidden states [B, H] -> [B, heads, D]."""
        ...
