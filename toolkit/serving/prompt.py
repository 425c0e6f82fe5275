"""The tokens of a prompt that comes as text."""

from __future__ import annotations

from typing import Protocol

from toolkit.errors import InputError


class Encoder(Protocol):
    """The part of checkpoint.tokenizer.Tokenizer that is needed."""

    bos_id: int | None

    @property
    def longest_token(self) -> int: ...

    def encode(self, text: str, add_special: bool = True) -> list[int]: ...


# Before it is cut into tokens, a text may be normalized to something shorter.
_SHRINKS = 4


def check_size(tokenizer: Encoder, text: str, max_seq_len: int) -> None:
    """Refuse, unread, what can never fit: ten megabytes would keep a tokenizer busy for minutes."""
    size, most = len(text.encode()), _SHRINKS * tokenizer.longest_token * max_seq_len
    if size > most:
        raise InputError(
            f"prompt: {size} bytes; no text of more than {most} fits into {max_seq_len} tokens "
            "(max_seq_len)"
        )


def prompt_tokens(
    tokenizer: Encoder, text: str, *, add_special: bool = True, max_seq_len: int | None = None
) -> list[int]:
    """As the tokenizer says, but never two beginnings: a rendered chat template may bring one."""
    if max_seq_len is not None:
        check_size(tokenizer, text, max_seq_len)
    ids = tokenizer.encode(text, add_special=add_special)
    begin = tokenizer.bos_id
    return ids[1:] if begin is not None and ids[:2] == [begin, begin] else ids
