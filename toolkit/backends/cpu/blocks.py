"""KV memory: one array of blocks, a free list, and the block table of every open sequence."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike, NDArray

from toolkit.errors import CapacityError

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


@dataclass(slots=True)
class Sequence:
    """How many tokens are in the cache, and the blocks that hold them (and maybe some to spare)."""

    length: int = 0
    blocks: list[int] = field(default_factory=list)


class KVBlocks:
    """Keys and values of every layer: [layer, key or value, block, kv head, token in block, D]."""

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_size: int,
        block_size: int,
        blocks: int,
        dtype: DTypeLike,
    ) -> None:
        shape = (layers, 2, blocks, kv_heads, block_size, head_size)
        self.data = _aligned_zeros(shape, np.dtype(dtype))
        self.block_size = block_size
        self._free = list(range(blocks - 1, -1, -1))
        self._total = blocks

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def reserve(self, wanted: dict[int, int], sequences: dict[int, Sequence]) -> None:
        """Give each sequence the blocks for so many tokens: all of them, or CapacityError."""
        missing = {
            seq: -(-tokens // self.block_size) - len(sequences[seq].blocks)
            for seq, tokens in wanted.items()
        }
        needed = sum(count for count in missing.values() if count > 0)
        if needed > len(self._free):
            self._reclaim(sequences, wanted)
        if needed > len(self._free):
            raise CapacityError(
                f"no KV memory for {needed} more block(s) of {self.block_size} tokens: "
                f"{len(self._free)} of {self._total} are free; close a sequence and try again"
            )
        for seq, count in missing.items():
            if count > 0:
                sequences[seq].blocks += [self._free.pop() for _ in range(count)]

    def release(self, sequence: Sequence) -> None:
        """Take every block back."""
        self._free += sequence.blocks
        sequence.blocks = []

    def move(self, sequence: Sequence, sources: NDArray[np.int64], target: int) -> None:
        """Copy keys and values of these positions to `target`, `target + 1`, ... in every layer."""
        table = np.array(sequence.blocks)
        targets = np.arange(target, target + len(sources))
        from_block, from_row = table[sources // self.block_size], sources % self.block_size
        to_block, to_row = table[targets // self.block_size], targets % self.block_size
        # The right side is gathered whole before anything is written: overlap does no harm.
        self.data[:, :, to_block, :, to_row] = self.data[:, :, from_block, :, from_row]

    def _reclaim(self, sequences: dict[int, Sequence], wanted: dict[int, int]) -> None:
        """Truncated sequences keep their blocks until somebody else needs them."""
        for seq, sequence in sequences.items():
            tokens = max(sequence.length, wanted.get(seq, 0))
            used = -(-tokens // self.block_size)
            self._free += sequence.blocks[used:]
            del sequence.blocks[used:]


def blocks_within(budget: int, block_bytes: int, wanted: int) -> int:
    """How many of the `wanted` blocks fit in `budget` bytes; at least one."""
    return max(1, min(wanted, budget // block_bytes))


def memory_budget() -> int:
    """Half of this machine's memory. Pages cost nothing until a token is written to them."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Zeros that begin at a multiple of 64 bytes; the pages stay untouched."""
    count = int(np.prod(shape))
    raw = np.zeros(count * dtype.itemsize + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + count * dtype.itemsize].view(dtype).reshape(shape)
