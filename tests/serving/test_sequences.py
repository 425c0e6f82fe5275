"""Which cached sequence a call gets."""

from __future__ import annotations

import numpy as np

from tests.speculation.table_model import FakeTableModel, random_table
from toolkit.serving.sequences import Cached, SequencePool
from toolkit.speculation.interfaces import Step


def pool(size: int = 2) -> tuple[SequencePool, FakeTableModel]:
    model = FakeTableModel(random_table(0, 10), max_batch_size=size)
    return SequencePool(model), model


def read(model: FakeTableModel, cached: Cached, tokens: list[int]) -> None:
    """As a call would: feed what the sequence lacks."""
    new = np.asarray(tokens[len(cached.tokens) :], np.int64)
    model.forward([Step(cached.seq, new)])
    cached.tokens = np.concatenate([cached.tokens, new])


def test_a_call_continues_the_sequence_with_the_longest_shared_prefix():
    sequences, model = pool()
    first, second = sequences.acquire([1, 2, 3]), sequences.acquire([1, 5, 6])
    read(model, first, [1, 2, 3])
    read(model, second, [1, 5, 6])
    sequences.give_back(first)
    sequences.give_back(second)
    again = sequences.acquire([1, 5, 6, 7])
    assert again is second
    assert again.tokens.tolist() == [1, 5, 6]
    assert model.cache[again.seq] == [1, 5, 6]
    assert sequences.reused_tokens == 3


def test_the_last_token_is_always_fed_again():
    sequences, model = pool()
    cached = sequences.acquire([1, 2, 3])
    read(model, cached, [1, 2, 3])
    sequences.give_back(cached)
    assert sequences.acquire([1, 2, 3]).tokens.tolist() == [1, 2]


def test_a_shorter_text_rolls_the_sequence_back():
    sequences, model = pool()
    cached = sequences.acquire([1, 2, 3, 4])
    read(model, cached, [1, 2, 3, 4])
    sequences.give_back(cached)
    sequences.acquire([1, 2, 9])
    assert model.cache[cached.seq] == [1, 2]


def test_a_request_keeps_its_sequence_between_calls():
    sequences, model = pool()
    mine = sequences.acquire([1, 2, 3], "a")
    read(model, mine, [1, 2, 3])
    sequences.give_back(mine)
    other = sequences.acquire([1, 2, 3, 4], "b")  # the same beginning, another request
    assert other is not mine
    assert sequences.acquire([1, 2, 3, 4], "a") is mine
    assert sequences.active == 2


def test_a_released_sequence_is_open_to_others_with_what_it_holds():
    sequences, model = pool()
    mine = sequences.acquire([1, 2, 3], "a")
    read(model, mine, [1, 2, 3])
    sequences.give_back(mine)
    sequences.release("a")
    assert sequences.active == 0
    assert sequences.acquire([1, 2, 3, 4], "b") is mine
    assert sequences.reused_tokens == 3


def test_all_at_work_means_wait():
    sequences, _ = pool(size=1)
    assert sequences.acquire([1], "a") is not None
    assert sequences.acquire([2], "b") is None


def test_a_request_that_went_quiet_gives_way_when_nothing_else_is_left():
    sequences, _ = pool(size=1)
    quiet = sequences.acquire([1], "a")
    sequences.give_back(quiet)
    taken = sequences.acquire([2], "b")
    assert taken is quiet
    assert taken.owner == "b"


def test_strangers_open_a_new_sequence_before_they_overwrite_a_remembered_one():
    sequences, model = pool(size=2)
    cached = sequences.acquire([1, 2])
    read(model, cached, [1, 2])
    sequences.give_back(cached)
    assert sequences.acquire([7, 8]) is not cached
    assert sequences.open == 2


def test_closing_frees_every_slot_of_the_model():
    sequences, model = pool()
    sequences.give_back(sequences.acquire([1, 2]))
    sequences.acquire([3, 4])
    sequences.close()
    assert model.cache == {}
