"""Which blocks hold the keys and values of which texts, so that other sequences may begin so.

A key and value depend on all tokens before them, so a block is known by the digest of its own
tokens and of the block before it. Only whole blocks are known, and a known block is never written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np


class PrefixIndex:
    """Known blocks; of those that no sequence holds, the one unused for longest goes first."""

    def __init__(self) -> None:
        self._block: dict[bytes, int] = {}
        self._key: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def idle(self) -> int:
        """Known blocks that no sequence holds: memory that may be taken at any time."""
        return len(self._idle)

    def __contains__(self, block: int) -> bool:
        return block in self._key

    def find(self, tokens: Sequence[int], block_size: int) -> list[int]:
        """The blocks that hold the longest known beginning of these tokens."""
        found = []
        for key in _keys(tokens, block_size):
            if key not in self._block:
                break
            found.append(self._block[key])
        return found

    def add(self, tokens: Sequence[int], block_size: int, blocks: Sequence[int]) -> None:
        """These blocks hold these tokens; what is known already stays as it is."""
        for key, block in zip(_keys(tokens, block_size), blocks, strict=False):
            if key not in self._block and block not in self._key:
                self._block[key], self._key[block] = block, key

    def hold(self, block: int) -> None:
        """A sequence uses it."""
        self._idle.pop(block, None)

    def leave(self, block: int) -> None:
        """No sequence uses it any more; it is remembered while memory lasts."""
        self._idle[block] = None

    def forget(self, block: int) -> None:
        """It is going to be written."""
        self._idle.pop(block, None)
        if (key := self._key.pop(block, None)) is not None:
            del self._block[key]

    def oldest(self) -> int:
        """Forget the idle block that was left first, and hand it out."""
        block = next(iter(self._idle))
        self.forget(block)
        return block


def _keys(tokens: Sequence[int], block_size: int) -> Iterator[bytes]:
    """One for every whole block of the text."""
    values = np.asarray(tokens, dtype="<i8")
    key = b""
    for start in range(0, len(values) - block_size + 1, block_size):
        block = values[start : start + block_size].tobytes()
        key = blake2b(block, key=key, digest_size=32).digest()
        yield key
