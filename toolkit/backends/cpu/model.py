"""A language model on the embedded engine: ragged batches over paged keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.backends.cpu.blocks import KVBlocks, Sequence, blocks_within, memory_budget
from toolkit.backends.cpu.paged import PagedModel
from toolkit.engine.directory import CpuEngine
from toolkit.errors import CapacityError, InputError
from toolkit.speculation.interfaces import Step, StepOutput


@dataclass(slots=True)
class Piece:
    """The tokens of one step that go through the engine in one pass."""

    step: int
    start: int
    stop: int


class CpuModel:
    """Implements speculation.interfaces.LanguageModel. One thread at a time."""

    def __init__(
        self,
        engine: CpuEngine,
        *,
        threads: int | None = None,
        kv_cache_bytes: int | None = None,
        share_prefixes: bool = False,
    ) -> None:
        self.engine = engine
        self.vocab_size = engine.settings.vocab_size
        self.token_vocab_size = self.vocab_size  # of the tokens that it reads
        self.max_seq_len = engine.max_seq_len
        self.max_batch_size = engine.max_batch_size
        self._paged = PagedModel(engine, threads)
        self._kv = self._allocate(memory_budget() if kv_cache_bytes is None else kv_cache_bytes)
        self._paged.bind(self._kv.data)
        self._share_prefixes = share_prefixes
        self._sequences: dict[int, Sequence] = {}
        self._next_seq = 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Of one sequence, all layers."""
        data = self._kv.data  # [layer, 2, block, kv head, token, D]
        return int(data.nbytes // (data.shape[2] * self._kv.block_size))

    @property
    def free_blocks(self) -> int:
        """KV blocks that no sequence holds."""
        return self._kv.free_blocks

    @property
    def kv_capacity(self) -> int:
        return self._kv.total * self._kv.block_size

    @property
    def kv_usage(self) -> float:
        return 1 - self._kv.free_blocks / self._kv.total

    def open(self) -> int:
        if len(self._sequences) >= self.max_batch_size:
            raise CapacityError(
                f"all {self.max_batch_size} sequences of the engine are in use (max_batch_size)"
            )
        self._next_seq += 1
        self._sequences[self._next_seq] = Sequence()
        return self._next_seq

    def close(self, seq: int) -> None:
        self._kv.release(self._sequence(seq))
        del self._sequences[seq]

    def length(self, seq: int) -> int:
        return self._sequence(seq).length

    def adopt(self, seq: int, tokens: Many[int]) -> int:
        sequence = self._sequence(seq)
        if sequence.length or not self._share_prefixes:
            return 0
        self._kv.release(sequence)  # blocks to spare, of a text that was truncated to nothing
        return self._kv.adopt(sequence, tokens)

    def share(self, seq: int, tokens: Many[int]) -> None:
        if self._share_prefixes:
            self._kv.share(self._sequence(seq), tokens)

    def truncate(self, seq: int, length: int) -> None:
        sequence = self._sequence(seq)
        if not 0 <= length <= sequence.length:
            raise InputError(f"cannot truncate {sequence.length} tokens to {length}")
        sequence.length = length

    def keep(self, seq: int, base: int, rows: Many[int]) -> None:
        sequence = self._sequence(seq)
        fed = sequence.length - base
        if base < 0 or not all(0 <= row < fed for row in rows):
            raise InputError(f"cannot keep rows {list(rows)} of {fed} tokens fed from {base}")
        if list(rows) != list(range(len(rows))):
            self._kv.move(sequence, base + np.asarray(rows, np.int64), base)
        sequence.length = base + len(rows)

    def forward(self, steps: Many[Step]) -> list[StepOutput]:
        """Nothing changes when a step is refused; longer prompts than max_num_tokens take turns."""
        check_steps(steps, self)
        if not steps:
            return []
        wanted = {step.seq: self.length(step.seq) + len(step.tokens) for step in steps}
        self._kv.reserve(wanted, self._sequences)
        parts: list[list[tuple[NDArray[np.float32], NDArray[np.float32]]]] = [[] for _ in steps]
        for pieces in passes(steps, self.engine.max_num_tokens):
            self._run(steps, pieces, parts)
        return [_output(step, part) for step, part in zip(steps, parts, strict=True)]

    def _run(
        self,
        steps: Many[Step],
        pieces: list[Piece],
        parts: list[list[tuple[NDArray[np.float32], NDArray[np.float32]]]],
    ) -> None:
        """One pass through the engine; logits and hidden states are added to their steps' parts."""
        rows = [_wanted_rows(steps[piece.step], piece) for piece in pieces]
        logits, hidden = self._paged.infer(self._inputs(steps, pieces, rows))
        logits = logits.copy()  # the engine's own memory: the next pass writes there
        taken = read = 0
        for piece, span in zip(pieces, rows, strict=True):
            step = steps[piece.step]
            here, fed = (
                slice(taken, taken + len(span)),
                slice(read, read + piece.stop - piece.start),
            )
            states = hidden[fed].copy() if step.hidden else hidden[:0]
            parts[piece.step].append((logits[here], states))
            taken, read = here.stop, fed.stop
            self._sequences[step.seq].length += piece.stop - piece.start

    def _inputs(
        self, steps: Many[Step], pieces: list[Piece], rows: list[range]
    ) -> dict[str, NDArray[np.generic]]:
        """Every sequence's tokens, positions, past, blocks and mask, one after the other."""
        block_size = self._kv.block_size
        tokens, positions, wanted, biases, features = [], [], [], [], []
        past, blocks = [], []
        begins, block_begins, bias_begins = [0], [0], [0]
        for piece, span in zip(pieces, rows, strict=True):
            step = steps[piece.step]
            sequence = self._sequences[step.seq]
            size, length = piece.stop - piece.start, sequence.length
            tokens.append(step.tokens[piece.start : piece.stop])
            positions.append(
                np.arange(length, length + size)
                if step.positions is None
                else step.positions[piece.start : piece.stop]
            )
            wanted.append(np.arange(span.start, span.stop) + (begins[-1] - piece.start))
            if step.mask is not None:
                biases.append(step.mask.ravel())
            if step.features is not None:
                features.append(step.features[piece.start : piece.stop, None])
            past.append(length)
            blocks += sequence.blocks[: -(-(length + size) // block_size)]
            begins.append(begins[-1] + size)
            block_begins.append(len(blocks))
            # No entries for a sequence: causal.
            bias_begins.append(bias_begins[-1] + (size * size if step.mask is not None else 0))
        longest = max(p + b - a for p, a, b in zip(past, begins, begins[1:], strict=False))
        return {
            "input_ids": np.concatenate(tokens, dtype=np.int64),
            "position_ids": np.concatenate(positions, dtype=np.int64),
            "rows": np.concatenate(wanted, dtype=np.int32),
            "past_lens": np.array(past, np.int32),
            "subsequence_begins": np.array(begins, np.int32),
            "block_indices": np.array(blocks, np.int32),
            "block_indices_begins": np.array(block_begins, np.int32),
            "max_context_len": np.array(longest, np.int32),
            "qq_bias": np.concatenate(biases, dtype=np.uint8) if biases else np.zeros(0, np.uint8),
            "qq_bias_begins": np.array(bias_begins, np.int32),
            **({"features": np.concatenate(features, dtype=np.float32)} if features else {}),
        }

    def _sequence(self, seq: int) -> Sequence:
        try:
            return self._sequences[seq]
        except KeyError:
            raise InputError(f"sequence {seq} is not open") from None

    def _allocate(self, budget: int) -> KVBlocks:
        engine, s = self.engine, self.engine.settings
        kv_dtype = np.dtype(self._paged.kv_dtype)
        block_bytes = (
            2 * s.num_layers * s.num_kv_heads * engine.block_size * s.head_size * kv_dtype.itemsize
        )
        per_sequence = -(-engine.max_seq_len // engine.block_size)
        return KVBlocks(
            layers=s.num_layers,
            kv_heads=s.num_kv_heads,
            head_size=s.head_size,
            block_size=engine.block_size,
            blocks=blocks_within(budget, block_bytes, engine.max_batch_size * per_sequence),
            dtype=kv_dtype,
        )


def check_steps(steps: Many[Step], model: CpuModel) -> None:
    """Refuse what the engine would answer with nonsense or a crash."""
    if len(steps) > model.max_batch_size:
        raise InputError(
            f"{len(steps)} sequences in one step; max_batch_size is {model.max_batch_size}"
        )
    if len({step.seq for step in steps}) != len(steps):
        raise InputError("a sequence appears twice in one step")
    for step in steps:
        size, end = len(step.tokens), model.length(step.seq) + len(step.tokens)
        where = f"sequence {step.seq}"
        if size == 0:
            raise InputError(f"{where}: a step needs at least one token")
        if end > model.max_seq_len:
            raise InputError(f"{where}: {end} tokens; max_seq_len is {model.max_seq_len}")
        if not 0 <= step.rows <= size:
            raise InputError(f"{where}: logits of {step.rows} rows wanted, {size} tokens given")
        low, high = step.tokens.min(), step.tokens.max()
        if low < 0 or high >= model.token_vocab_size:
            wrong = low if low < 0 else high
            raise InputError(f"{where}: token {wrong} is outside 0..{model.token_vocab_size - 1}")
        wanted = (size, model.engine.settings.hidden_size) if model.engine.head else None
        if (None if step.features is None else step.features.shape) != wanted:
            raise InputError(f"{where}: features of shape {wanted} are wanted")
        if step.positions is not None or step.mask is not None:
            _check_tree(step, where, model.max_seq_len)


def _check_tree(step: Step, where: str, max_seq_len: int) -> None:
    size = len(step.tokens)
    if step.positions is not None:
        if step.positions.shape != (size,):
            raise InputError(f"{where}: positions {step.positions.shape}, expected ({size},)")
        if step.positions.min() < 0 or step.positions.max() >= max_seq_len:
            raise InputError(f"{where}: positions must be within 0..{max_seq_len - 1}")
    if step.mask is not None:
        if step.mask.shape != (size, size):
            raise InputError(f"{where}: mask {step.mask.shape}, expected ({size}, {size})")
        if not step.mask.diagonal().all():
            raise InputError(f"{where}: every token must attend to itself (mask diagonal)")


def passes(steps: Many[Step], max_num_tokens: int) -> Iterator[list[Piece]]:
    """Fill passes of at most `max_num_tokens`; a step with a mask is never cut."""
    pieces: list[Piece] = []
    room = max_num_tokens
    for index, step in enumerate(steps):
        start, size = 0, len(step.tokens)
        while start < size:
            whole = step.mask is not None
            if room == 0 or (whole and size > room and pieces):
                yield pieces
                pieces, room = [], max_num_tokens
            stop = size if whole else min(size, start + room)
            pieces.append(Piece(index, start, stop))
            room = max(0, room - (stop - start))
            start = stop
    yield pieces


def _wanted_rows(step: Step, piece: Piece) -> range:
    """Which tokens of this piece are among the step's last R: indices within the step."""
    return range(max(piece.start, len(step.tokens) - step.rows), piece.stop) or range(0)


def _output(step: Step, parts: list[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> StepOutput:
    logits, hidden = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    return StepOutput(logits, hidden if step.hidden else None)
