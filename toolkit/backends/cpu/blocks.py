"""KV memory: one array of blocks, a free list, and the block table of every open sequence.

A block may be held by several sequences whose texts begin alike: holders are counted, and whoever
has to write into a block that others may read gets one of its own first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from toolkit.backends.cpu.prefixes import PrefixIndex
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
        self._holders = [0] * blocks
        self._prefixes = PrefixIndex()
        self.total = blocks

    @property
    def free_blocks(self) -> int:
        """Those that no sequence holds, whether or not their content is remembered."""
        return len(self._free) + self._prefixes.idle

    def adopt(self, sequence: Sequence, tokens: Many[int]) -> int:
        """Let an empty sequence begin with what is known of these tokens; returns how many."""
        for block in self._prefixes.find(tokens, self.block_size):
            self._hold(block)
            sequence.blocks.append(block)
        sequence.length = len(sequence.blocks) * self.block_size
        return sequence.length

    def share(self, sequence: Sequence, tokens: Many[int]) -> None:
        """The sequence's cache begins with these tokens: others may begin with its whole blocks."""
        self._prefixes.add(tokens, self.block_size, sequence.blocks)

    def reserve(self, wanted: dict[int, int], sequences: dict[int, Sequence]) -> None:
        """Give each sequence the blocks for so many tokens: all of them, or CapacityError."""
        missing = {
            seq: max(-(-tokens // self.block_size) - len(sequences[seq].blocks), 0)
            for seq, tokens in wanted.items()
        }
        shared = {seq: self._shared(sequences[seq], tokens) for seq, tokens in wanted.items()}
        needed = sum(missing.values()) + sum(map(len, shared.values()))
        if needed > self.free_blocks:
            self._reclaim(sequences, wanted)
        if needed > self.free_blocks:
            raise CapacityError(
                f"no KV memory for {needed} more block(s) of {self.block_size} tokens: "
                f"{self.free_blocks} of {self.total} are free; close a sequence and try again"
            )
        for seq, count in missing.items():
            for place in shared[seq]:
                self._make_own(sequences[seq], place)
            sequences[seq].blocks += [self._take() for _ in range(count)]

    def release(self, sequence: Sequence) -> None:
        """Take every block back."""
        self._drop(sequence.blocks)
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
            self._drop(sequence.blocks[used:])
            del sequence.blocks[used:]

    def _shared(self, sequence: Sequence, tokens: int) -> list[int]:
        """Places in the block table that will be written up to `tokens`, and that others hold."""
        first, last = sequence.length // self.block_size, -(-tokens // self.block_size)
        places = range(first, min(last, len(sequence.blocks)))
        for place in places:
            if self._holders[block := sequence.blocks[place]] == 1 and block in self._prefixes:
                self._prefixes.forget(block)  # nobody else reads it: it may be written as it is
        return [place for place in places if self._holders[sequence.blocks[place]] > 1]

    def _make_own(self, sequence: Sequence, place: int) -> None:
        """Copy on write."""
        theirs, own = sequence.blocks[place], self._take()
        self.data[:, :, own] = self.data[:, :, theirs]
        sequence.blocks[place] = own
        self._drop([theirs])

    def _take(self) -> int:
        block = self._free.pop() if self._free else self._prefixes.oldest()
        self._hold(block)
        return block

    def _hold(self, block: int) -> None:
        self._holders[block] += 1
        self._prefixes.hold(block)

    def _drop(self, blocks: Many[int]) -> None:
        """The end of a text is forgotten before its beginning, which more texts may share."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._prefixes:
                self._prefixes.leave(block)
            else:
                self._free.append(block)


def blocks_within(budget: int, block_bytes: int, wanted: int) -> int:
    """How many of the `wanted` blocks fit in `budget` bytes; at least one."""
    return max(1, min(wanted, budget // block_bytes))


def memory_budget() -> int:
    """Half of the memory that this machine, or the container around this process, has.

    Pages cost nothing until a token is written to them.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, _container_limit() or machine) // 2


def _container_limit(file: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    """Bytes that control groups (version 2) allow; None: no limit, or nobody can tell."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Zeros that begin at a multiple of 64 bytes; the pages stay untouched."""
    count = int(np.prod(shape))
    raw = np.zeros(count * dtype.itemsize + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + count * dtype.itemsize].view(dtype).reshape(shape)
