"""Texts that begin alike share their first blocks, and nobody's text changes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.cpu.conftest import tokens, whole
from toolkit.backends.cpu.backend import CpuBackend
from toolkit.backends.cpu.blocks import KVBlocks, Sequence, _container_limit
from toolkit.errors import CapacityError
from toolkit.speculation.interfaces import Step

BLOCK = 4
CLOSE = {"atol": 2e-5, "rtol": 0}


def blocks(count: int) -> KVBlocks:
    return KVBlocks(
        layers=1, kv_heads=1, head_size=2, block_size=BLOCK, blocks=count, dtype=np.float32
    )


class Texts:
    """Sequences whose cache holds the tokens themselves, so that what is shared can be read."""

    def __init__(self, count: int) -> None:
        self.kv = blocks(count)
        self.sequences: dict[int, Sequence] = {}

    def begin(self, seq: int, text: list[int], *, share: bool = True) -> int:
        """Adopt, write the rest, share; returns how much was adopted."""
        self.sequences[seq] = Sequence()
        known = self.kv.adopt(self.sequences[seq], text[:-1])
        self.write(seq, text[known:])
        if share:
            self.kv.share(self.sequences[seq], text)
        return known

    def write(self, seq: int, text: list[int]) -> None:
        sequence = self.sequences[seq]
        self.kv.reserve({seq: sequence.length + len(text)}, self.sequences)
        for token in text:
            block = sequence.blocks[sequence.length // BLOCK]
            self.kv.data[:, :, block, :, sequence.length % BLOCK] = token
            sequence.length += 1

    def read(self, seq: int) -> list[int]:
        sequence = self.sequences[seq]
        return [
            int(self.kv.data[0, 0, sequence.blocks[i // BLOCK], 0, i % BLOCK, 0])
            for i in range(sequence.length)
        ]

    def end(self, seq: int) -> None:
        self.kv.release(self.sequences.pop(seq))


def test_only_whole_blocks_of_the_common_beginning_are_shared():
    texts = Texts(16)
    assert texts.begin(1, list(range(10))) == 0
    assert texts.begin(2, [*range(9), 99, 98]) == 8
    assert texts.begin(3, [0, 1, 2, 77, 4, 5, 6, 7, 8]) == 0
    assert texts.begin(4, list(range(8))) == 4  # the last token is left to be read
    assert texts.sequences[1].blocks[:2] == texts.sequences[2].blocks[:2]
    assert texts.kv.free_blocks == 16 - (3 + 1 + 3 + 1)
    for seq in (1, 2, 3, 4):
        texts.end(seq)
    assert texts.kv.free_blocks == 16


def test_what_is_remembered_outlives_its_sequence_until_memory_is_needed():
    texts = Texts(4)
    texts.begin(1, list(range(8)))
    texts.end(1)
    assert texts.kv.free_blocks == 4
    assert texts.begin(2, list(range(9))) == 8
    texts.end(2)
    texts.begin(3, list(range(100, 116)))  # needs all four blocks
    texts.end(3)
    assert texts.begin(4, list(range(9))) == 0


def test_the_end_of_a_text_is_forgotten_before_its_beginning():
    texts = Texts(5)
    texts.begin(1, list(range(16)))
    texts.end(1)
    texts.begin(2, list(range(50, 58)), share=False)  # one free block, then one remembered
    texts.end(2)
    assert texts.begin(3, list(range(17))) == 12


def test_a_block_that_others_read_is_copied_before_it_is_written():
    texts = Texts(8)
    texts.begin(1, list(range(8)))
    texts.begin(2, list(range(9)))
    texts.sequences[2].length = 6  # rolled back into a shared block
    texts.write(2, [70, 71, 72])
    assert texts.read(1) == list(range(8))
    assert texts.read(2) == [0, 1, 2, 3, 4, 5, 70, 71, 72]
    assert texts.begin(3, list(range(9))) == 8  # the original is still known
    assert texts.read(3) == list(range(9))


def test_a_block_that_nobody_else_reads_is_forgotten_and_written_as_it_is():
    texts = Texts(2)
    texts.begin(1, list(range(8)))
    before = list(texts.sequences[1].blocks)
    texts.sequences[1].length = 5
    texts.write(1, [60, 61])
    assert texts.sequences[1].blocks == before
    texts.end(1)
    assert texts.begin(2, list(range(8))) == 4  # only the first block is what it was


def test_copies_count_against_the_memory():
    texts = Texts(3)
    texts.begin(1, list(range(8)))
    texts.begin(2, list(range(9)))  # shares two, takes the third
    texts.sequences[2].length = 2
    with pytest.raises(CapacityError, match="no KV memory for 2 more"):
        texts.kv.reserve({2: 12}, {1: texts.sequences[1], 2: texts.sequences[2]})
    assert texts.read(1) == list(range(8))


def test_whatever_happens_texts_stay_and_blocks_come_back():
    """Random texts over a small alphabet, with rollbacks, in too little memory."""
    rng = np.random.default_rng(5)
    texts, written = Texts(24), {}
    for number in range(600):
        if written and (len(written) > 4 or rng.random() < 0.3):
            seq = int(rng.choice(list(written)))
            texts.end(seq)
            del written[seq]
        text = [int(t) for t in np.repeat(rng.integers(0, 2, 6), BLOCK)[: rng.integers(2, 24)]]
        try:
            texts.begin(number, text)
        except CapacityError:
            texts.end(number)
            continue
        written[number] = text
        seq = int(rng.choice(list(written)))
        kept = int(rng.integers(1, len(written[seq]) + 1))
        more = [int(t) for t in rng.integers(5, 9, rng.integers(1, 5))]
        texts.sequences[seq].length = kept
        written[seq] = written[seq][:kept]
        try:
            texts.write(seq, more)
            written[seq] = written[seq] + more
        except CapacityError:
            pass
        for other, wanted in written.items():
            assert texts.read(other) == wanted
    for seq in list(written):
        texts.end(seq)
    assert texts.kv.free_blocks == 24
    assert set(texts.kv._holders) == {0}


@pytest.fixture(scope="module")
def sharing(engine_dir):
    return CpuBackend().load(engine_dir, share_prefixes=True)


def test_logits_after_an_adopted_beginning_are_those_of_a_whole_reading(sharing):
    text = tokens(150)
    first = sharing.open()
    sharing.forward([Step(first, text[:100], rows=0)])
    sharing.share(first, text[:100].tolist())
    second = sharing.open()
    known = sharing.adopt(second, text.tolist())
    assert known == 100 // sharing.engine.block_size * sharing.engine.block_size > 0
    (output,) = sharing.forward([Step(second, text[known:], rows=len(text) - known)])
    sharing.close(first)
    np.testing.assert_allclose(output.logits, whole(sharing, text)[known:], **CLOSE)
    sharing.close(second)
    assert sharing.kv_usage == 0.0


def test_without_the_option_nothing_is_shared(model):
    seq = model.open()
    model.forward([Step(seq, tokens(100), rows=0)])
    model.share(seq, tokens(100).tolist())
    assert model.adopt(model.open(), tokens(100).tolist()) == 0


def test_a_container_may_have_less_memory_than_its_machine(tmp_path):
    file = tmp_path / "memory.max"
    assert _container_limit(file) is None
    file.write_text("max\n")
    assert _container_limit(file) is None
    file.write_text("1073741824\n")
    assert _container_limit(file) == 2**30
