"""Training data on disk: the target's own outputs and what it computed while it made them.

A shard is one safetensors file, written whole or not at all. N sequences of n tokens together, C
captured layers, H hidden:

    tokens          int32 [n]        prompt, then output, sequence after sequence
    offsets         int64 [N + 1]    where each sequence begins
    prompt_lengths  int32 [N]
    greedy          uint8 [N]        1: greedy, 0: sampled
    hidden          bfloat16 [n, (C + 1) H]  the residual stream after the captured layers, then the
                                     final normalised state; zeros at a sequence's last token, which
                                     the target never read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.safetensors_file import header_bytes, read_header, read_rows
from toolkit.errors import CheckpointError
from toolkit.store import write_atomic

TENSORS = ("tokens", "offsets", "prompt_lengths", "greedy", "hidden")


@dataclass(frozen=True)
class Sample:
    """One prompt with the target's answer."""

    tokens: NDArray[np.int32]  # [T]
    prompt_length: int
    greedy: bool
    hidden: NDArray[Any]  # [T, (C + 1) H] bfloat16

    @property
    def output(self) -> NDArray[np.int32]:
        return self.tokens[self.prompt_length :]


def write_shard(path: Path, samples: Sequence[Sample]) -> None:
    """All samples of one shard."""
    arrays: dict[str, NDArray[Any]] = {
        "tokens": np.concatenate([s.tokens for s in samples]).astype(np.int32),
        "offsets": np.cumsum([0, *(len(s.tokens) for s in samples)]).astype(np.int64),
        "prompt_lengths": np.array([s.prompt_length for s in samples], np.int32),
        "greedy": np.array([s.greedy for s in samples], np.uint8),
        "hidden": np.concatenate([s.hidden for s in samples]).astype(ml_dtypes.bfloat16),
    }
    header = header_bytes({name: (array.dtype, array.shape) for name, array in arrays.items()})
    write_atomic(path, b"".join([header, *(a.tobytes() for a in arrays.values())]))


def read_shard(path: Path) -> list[Sample]:
    """Every sample; hidden states stay in the file until they are looked at."""
    spans = read_header(path)
    if set(spans) != set(TENSORS):
        raise CheckpointError(
            str(path), [f"not training data: expected the tensors {', '.join(TENSORS)}"]
        )
    found = {name: read_rows(path, span) for name, span in spans.items() if name != "hidden"}
    states = spans["hidden"]
    if len(states.shape) != 2 or states.shape[0] != len(found["tokens"]):
        raise CheckpointError(str(path), ["hidden: not one row for each token"])
    hidden = np.memmap(path, states.dtype, "r", offset=states.start, shape=states.shape)
    bounds = found["offsets"].tolist()
    lengths, greedy = found["prompt_lengths"].tolist(), found["greedy"].tolist()
    if sorted(bounds) != bounds or len(bounds) != len(lengths) + 1:
        raise CheckpointError(str(path), ["offsets do not fit the sequences"])
    return [
        Sample(found["tokens"][a:b], lengths[i], bool(greedy[i]), hidden[a:b])
        for i, (a, b) in enumerate(pairwise(bounds))
    ]
