"""A language model small enough to enumerate: the next token depends on the last few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import CapacityError
from toolkit.speculation.interfaces import Step, StepOutput


class FakeTableModel:
    """A `LanguageModel` whose logits are looked up by the last tokens in its cache.

    It reads its own cache, not what it was just fed, so a wrong rollback changes its answers.
    """

    def __init__(
        self,
        table: NDArray[np.float64],  # [V] * order + [V] logits
        *,
        max_seq_len: int = 4096,
        max_batch_size: int = 8,
        share_prefixes: bool = False,
        kv_capacity: int | None = None,
    ) -> None:
        self.table = np.asarray(table, dtype=np.float32)
        self.order = self.table.ndim - 1
        self.vocab_size = self.table.shape[-1]
        self.max_seq_len = max_seq_len
        self.max_batch_size = max_batch_size
        self.cache: dict[int, list[int]] = {}
        self.kv_capacity = kv_capacity or max_batch_size * max_seq_len
        self.share_prefixes = share_prefixes
        self.shared: list[list[int]] = []
        self.forwards: list[list[int]] = []  # tokens per sequence of every pass
        self.nothing = np.empty((0, self.vocab_size), np.float32)
        self._next = 0

    def open(self) -> int:
        if len(self.cache) >= self.max_batch_size:
            raise CapacityError(f"all {self.max_batch_size} slots are taken")
        self._next += 1
        self.cache[self._next] = []
        return self._next

    def close(self, seq: int) -> None:
        del self.cache[seq]

    def length(self, seq: int) -> int:
        return len(self.cache[seq])

    @property
    def kv_usage(self) -> float:
        return sum(map(len, self.cache.values())) / self.kv_capacity

    def adopt(self, seq: int, tokens: Sequence[int]) -> int:
        """As much as any shared text has in common with this one."""
        assert not self.cache[seq]
        known = max((_common(text, tokens) for text in self.shared), default=0)
        self.cache[seq] = list(tokens[:known])
        return known

    def share(self, seq: int, tokens: Sequence[int]) -> None:
        assert self.cache[seq][: len(tokens)] == list(tokens)
        if self.share_prefixes:
            self.shared.append(list(tokens))

    def truncate(self, seq: int, length: int) -> None:
        assert length <= len(self.cache[seq])
        del self.cache[seq][length:]

    def keep(self, seq: int, base: int, rows: Sequence[int]) -> None:
        cache = self.cache[seq]
        cache[base:] = [cache[base + row] for row in rows]

    def forward(self, steps: Sequence[Step]) -> list[StepOutput]:
        assert len({step.seq for step in steps}) == len(steps)
        self.forwards.append([len(step.tokens) for step in steps])
        return [
            StepOutput(
                self._row(step) if step.mask is None else self._tree(step),
                step.tokens[:, None].astype(np.float32) if step.hidden else None,
            )
            for step in steps
        ]

    def _tree(self, step: Step) -> NDArray[np.float32]:  # [T, V]
        """Each row sees the cache and the new tokens that its mask shows, in their order."""
        cache, rows = self.cache[step.seq], []
        assert step.positions is not None
        assert step.mask is not None
        for position, seen in zip(step.positions, step.mask, strict=True):
            text = [*cache, *step.tokens[seen].tolist()]
            assert position == len(text) - 1
            context = ([0] * self.order + text)[-self.order :] if self.order else []
            rows.append(self.table[tuple(context)])
        cache.extend(step.tokens.tolist())
        assert len(cache) <= self.max_seq_len
        return np.stack(rows)[len(rows) - step.rows :]

    def _row(self, step: Step) -> NDArray[np.float32]:  # [R, V]
        cache = self.cache[step.seq]
        cache.extend(step.tokens.tolist())
        assert len(cache) <= self.max_seq_len
        ends = range(len(cache) - step.rows + 1, len(cache) + 1)
        padded = [0] * self.order + cache
        context = [[padded[end + i] for end in ends] for i in range(self.order)]
        return self.table[tuple(map(np.array, context))] if step.rows else self.nothing


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def random_table(
    seed: int, vocab_size: int, order: int = 1, spread: float = 1.0
) -> NDArray[np.float64]:
    """Logits of a random model; a larger spread makes it surer of itself."""
    shape = (vocab_size,) * (order + 1)
    return np.random.default_rng(seed).normal(0.0, spread, shape)
