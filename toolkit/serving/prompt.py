"""The tokens of a prompt that comes as text."""

from __future__ import annotations

from typing import Protocol


class Encoder(Protocol):
    """The part of checkpoint.tokenizer.Tokenizer that is needed."""

    bos_id: int | None

    def encode(self, text: str, add_special: bool = True) -> list[int]: ...


def prompt_tokens(tokenizer: Encoder, text: str, *, add_special: bool = True) -> list[int]:
    """As the tokenizer says, but never two beginnings: a rendered chat template may bring one."""
    ids = tokenizer.encode(text, add_special=add_special)
    begin = tokenizer.bos_id
    return ids[1:] if begin is not None and ids[:2] == [begin, begin] else ids
