"""KV caches that outlive a call: the next call with the same beginning continues, not restarts.

TensorRT-LLM's contract is stateless: every call brings the whole sequence. A call takes the cached
sequence that shares the longest prefix with it and rolls that back to the shared length, which is
O(1). A call with a request id keeps its sequence until it is released, so that two conversations
do not take turns in ruining one cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import CapacityError
from toolkit.speculation.interfaces import LanguageModel

Tokens = NDArray[np.int64]


@dataclass(slots=True)
class Cached:
    """One open sequence of the model, with the tokens whose keys and values it holds."""

    seq: int
    tokens: Tokens = field(default_factory=lambda: np.zeros(0, np.int64))
    owner: str = ""  # the request id that it is kept for; "": nobody's
    busy: bool = False  # a call is at work on it
    used: int = 0  # when, in calls


class SequencePool:
    """At most `size` open sequences of one model. Not thread-safe."""

    def __init__(self, model: LanguageModel, size: int | None = None) -> None:
        self._model = model
        self._size = size or model.max_batch_size
        self._entries: list[Cached] = []
        self._clock = count(1)
        self.reused_tokens = 0

    @property
    def active(self) -> int:
        """Sequences that a call or a request holds; the others are only remembered."""
        return sum(entry.busy or bool(entry.owner) for entry in self._entries)

    @property
    def open(self) -> int:
        return len(self._entries)

    def acquire(self, tokens: Sequence[int], owner: str = "") -> Cached | None:
        """A sequence rolled back to a proper prefix of `tokens`; None while all are at work."""
        wanted = np.asarray(tokens, dtype=np.int64)
        entry = self._choose(wanted, owner)
        if entry is None:
            return None
        # At least one token must be fed, or there would be no logits.
        shared = min(_shared_prefix(entry.tokens, wanted), len(wanted) - 1)
        self._model.truncate(entry.seq, shared)
        entry.tokens = entry.tokens[:shared]
        entry.owner, entry.busy, entry.used = owner, True, next(self._clock)
        self.reused_tokens += shared
        return entry

    def give_back(self, entry: Cached) -> None:
        """The call is over; its request, if it has an id, keeps the sequence."""
        entry.busy = False

    def release(self, owner: str) -> None:
        """The request is over: its sequences are open to others, their content included."""
        for entry in self._entries:
            if owner and entry.owner == owner:
                entry.owner = ""

    def discard(self, entry: Cached) -> None:
        """Close a sequence whose content cannot be trusted any more."""
        self._entries = [other for other in self._entries if other is not entry]
        self._model.close(entry.seq)

    def forget_one(self) -> bool:
        """Close the idle sequence that was used longest ago; False when all are at work."""
        idle = [entry for entry in self._entries if not entry.busy]
        if idle:
            self.discard(min(idle, key=lambda entry: (bool(entry.owner), entry.used)))
        return bool(idle)

    def close(self) -> None:
        for entry in list(self._entries):
            self.discard(entry)

    def _choose(self, tokens: Tokens, owner: str) -> Cached | None:
        idle = [entry for entry in self._entries if not entry.busy]
        mine = [entry for entry in idle if owner and entry.owner == owner]
        if mine:
            return mine[0]
        free = [entry for entry in idle if not entry.owner]
        best = max(free, key=lambda entry: _shared_prefix(entry.tokens, tokens), default=None)
        if best is not None and _shared_prefix(best.tokens, tokens) > 0:
            return best
        opened = self._open()
        if opened is not None:
            return opened
        # Last, a sequence of a request that has gone quiet: it can always be computed again.
        return min(free or idle, key=lambda entry: entry.used, default=None)

    def _open(self) -> Cached | None:
        if len(self._entries) >= self._size:
            return None
        try:
            entry = Cached(self._model.open())
        except CapacityError:
            return None
        self._entries.append(entry)
        return entry


def _shared_prefix(first: Tokens, second: Tokens) -> int:
    size = min(len(first), len(second))
    differing = np.flatnonzero(first[:size] != second[:size])
    return int(differing[0]) if len(differing) else size
