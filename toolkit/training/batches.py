"""Shards as batches, padded to the longest sequence, in an order that a seed decides.

B sequences, T tokens, C captured layers, H hidden, R rows: row r of a sequence stands for its
output token number r + 1, which is the first that a drafter can be asked for. The head reads states
up to position t = prompt_length - 1 + r and the token behind it, and says the token at t + 2; the
target's own distribution of that token comes from its final state at t + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolkit.optional import require
from toolkit.training.prompts import Split
from toolkit.training.shards import Sample, read_shard

if TYPE_CHECKING:
    import torch

MIN_OUTPUT = 3  # tokens; from a shorter answer nothing can be learnt


@dataclass(frozen=True)
class Batch:
    """Sequences side by side."""

    tokens: torch.Tensor  # [B, T] int64
    captured: torch.Tensor  # [B, T, C H]
    final: torch.Tensor  # [B, T, H]
    position: torch.Tensor  # [B, R] int64: t of every row
    valid: torch.Tensor  # [B, R] bool: not padding
    greedy: torch.Tensor  # [B] bool

    @property
    def labels(self) -> torch.Tensor:
        """The token that each row's head must say: [B, R]."""
        return self.tokens.gather(1, self.position + 2)

    def at(self, states: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """[B, T, X] -> [B, R, X]: what stands at t + offset."""
        where = (self.position + offset).unsqueeze(-1).expand(-1, -1, states.shape[-1])
        return states.gather(1, where)


def make_batch(samples: Sequence[Sample], hidden_size: int, device: str = "cpu") -> Batch:
    """Pad and stack; rows of padding point at some position that exists."""
    torch = require("torch", extra="train", why="training")
    longest = max(len(s.tokens) for s in samples)
    rows = max(len(s.output) - 1 for s in samples)
    tokens = np.zeros((len(samples), longest), np.int64)
    states = np.zeros((len(samples), longest, samples[0].hidden.shape[1]), np.float32)
    starts = np.array([s.prompt_length - 1 for s in samples])
    counts = np.array([len(s.output) - 1 for s in samples])
    for i, sample in enumerate(samples):
        tokens[i, : len(sample.tokens)] = sample.tokens
        states[i, : len(sample.tokens)] = sample.hidden
    index = np.arange(rows)[None]
    position = np.minimum(starts[:, None] + index, longest - 3)
    whole = torch.from_numpy(states).to(device)
    return Batch(
        tokens=torch.from_numpy(tokens).to(device),
        captured=whole[..., :-hidden_size],
        final=whole[..., -hidden_size:],
        position=torch.from_numpy(position).to(device),
        valid=torch.from_numpy(index < counts[:, None]).to(device),
        greedy=torch.from_numpy(np.array([s.greedy for s in samples])).to(device),
    )


class TrainingData:
    """The shards of one split in a directory; those that come later are found by `refresh`."""

    def __init__(self, directory: Path, split: Split, limit: int | None = None) -> None:
        self.directory, self.split, self._limit = directory, split, limit
        self._read: set[Path] = set()
        self.samples: list[Sample] = []
        self._fresh: list[Sample] = []
        self.refresh()
        self._fresh = []

    def refresh(self) -> None:
        """Read what was written since; it comes before what was seen already."""
        before = len(self.samples)
        for path in sorted(self.directory.glob(f"{self.split}-*.safetensors")):
            if path not in self._read and not self._full:
                self._read.add(path)
                self.samples += [s for s in read_shard(path) if len(s.output) >= MIN_OUTPUT]
        if self._limit is not None:
            self.samples = self.samples[: self._limit]
        self._fresh += self.samples[before:]

    @property
    def _full(self) -> bool:
        return self._limit is not None and len(self.samples) >= self._limit

    @property
    def tokens(self) -> int:
        return sum(len(s.tokens) for s in self.samples)

    def token_counts(self, vocab: int) -> NDArray[np.int64]:
        """How often each token was an output: [V]."""
        counts = np.zeros(vocab, np.int64)
        for sample in self.samples:
            counts += np.bincount(sample.output, minlength=vocab)
        return counts

    def groups(self, size: int, seed: int, epoch: int) -> Iterator[list[Sample]]:
        """One epoch, shuffled; sequences of like length come together, for less padding."""
        rng = Random(f"{seed} {epoch}")
        order = rng.sample(range(len(self.samples)), len(self.samples))
        chunk = size * 16
        groups: list[list[Sample]] = []
        for start in range(0, len(order), chunk):
            part = [self.samples[i] for i in order[start : start + chunk]]
            part.sort(key=lambda s: len(s.tokens))
            groups += [part[i : i + size] for i in range(0, len(part), size)]
        rng.shuffle(groups)
        for group in groups:
            while self._fresh:
                yield self._fresh[:size]
                del self._fresh[:size]
            yield group


def in_order(samples: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Groups of at most `size`, as they come."""
    for start in range(0, len(samples), size):
        yield samples[start : start + size]
