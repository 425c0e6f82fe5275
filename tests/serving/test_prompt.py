"""Prompts that come as text: what can never fit is refused before it is read."""

from __future__ import annotations

import pytest

from toolkit.errors import InputError
from toolkit.serving.prompt import check_size, prompt_tokens


class FakeEncoder:
    """A character is a token; the longest word of its vocabulary has six bytes."""

    bos_id, longest_token = 1, 6

    def __init__(self) -> None:
        self.asked = 0

    def encode(self, text, add_special=True):
        self.asked += 1
        return [1] * add_special + [ord(c) for c in text]


def test_a_text_that_cannot_fit_is_refused_unread():
    encoder = FakeEncoder()
    most = 4 * 6 * 10
    check_size(encoder, "a" * most, 10)
    with pytest.raises(InputError, match=r"241 bytes; no text of more than 240 .* 10 tokens"):
        prompt_tokens(encoder, "a" * (most + 1), max_seq_len=10)
    assert encoder.asked == 0
    with pytest.raises(InputError, match="243 bytes"):  # three bytes a character
        check_size(encoder, "한" * 81, 10)


def test_a_second_beginning_is_dropped():
    assert prompt_tokens(FakeEncoder(), "\x01a") == [1, 97]
    assert prompt_tokens(FakeEncoder(), "a", add_special=False) == [97]
