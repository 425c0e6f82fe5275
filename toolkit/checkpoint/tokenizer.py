"""The tokenizer that goes with a model: ids, text, chats, and text while it is being generated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from toolkit.checkpoint.chat import render_chat
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.text_stream import TextStream
from toolkit.errors import InputError
from toolkit.speculation.grammar import Grammar, Guide
from toolkit.speculation.llguidance_grammar import LlGuidance

TOKENIZER_VERSION = 1  # goes into digests: raise it when other files would be written
_PADDING = re.compile(r"pad|unused|reserved|extra|dummy|placeholder", re.IGNORECASE)


def write_tokenizer(source: Source, out: Path) -> None:
    """Write the source's tokenizer into `out`, and see that it loads."""
    out.mkdir(parents=True, exist_ok=True)
    source.tokenizer_files(out)
    load_tokenizer(out)


def load_tokenizer(tokenizer_dir: Path) -> Tokenizer:
    """From tokenizer.json, with special tokens and chat template from the files beside it."""
    from tokenizers import Tokenizer as Backend

    path = tokenizer_dir / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{path}: missing")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for bad files
        raise InputError(f"{path}: not a usable tokenizer: {error}") from None
    backend.no_padding()
    backend.no_truncation()
    config = _json(tokenizer_dir / "tokenizer_config.json")
    generation = _json(tokenizer_dir / "generation_config.json")
    return Tokenizer(backend, config, generation, _template(tokenizer_dir, config))


class Tokenizer:
    """Byte-exact in both directions; special tokens by id."""

    def __init__(
        self,
        backend: Any,  # tokenizers.Tokenizer
        config: Mapping[str, Any],
        generation: Mapping[str, Any],
        template: str | None,
    ) -> None:
        self._backend = backend
        self.chat_template = template
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.bos_token = _content(config.get("bos_token"))
        self.eos_token = _content(config.get("eos_token"))
        self.bos_id = self._id(self.bos_token, generation.get("bos_token_id"))
        named = self._id(self.eos_token, None)
        self.eos_ids = frozenset(_ids(generation.get("eos_token_id"))) | (
            frozenset() if named is None else {named}
        )
        decoder = json.loads(backend.to_str()).get("decoder") or {}
        self._bytewise = decoder.get("type") == "ByteLevel"

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest entry of the vocabulary."""
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        return max((len(token.encode()) for token in vocabulary), default=1)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special).ids
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def token(self, index: int) -> str | None:
        """The vocabulary's own spelling of one id."""
        text: str | None = self._backend.id_to_token(index)
        return text

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation, up to where the assistant's answer begins."""
        # The template writes the special tokens itself.
        return self.encode(self.chat_text(messages), add_special=self.chat_template is None)

    def chat_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The same as text; without a template the contents, a line each."""
        if self.chat_template is None:
            return "\n".join(message["content"] for message in messages)
        special = {"bos_token": self.bos_token or "", "eos_token": self.eos_token or ""}
        return render_chat(self.chat_template, messages, special)

    def stream(self) -> TextStream:
        return TextStream(self.decode, bytewise=self._bytewise)

    def grammar(self, guide: Guide) -> Grammar:
        """The guide over these tokens; InputError when it does not compile or allows nothing."""
        return self._guides.compile(guide)

    @cached_property
    def _guides(self) -> LlGuidance:
        return LlGuidance(self._backend.to_str(), self.vocab_size, self.eos_ids)

    def compare(self, other: Tokenizer) -> list[str]:
        """What makes ids mean different things in the two; rows that only pad are tolerated."""
        shared = min(self.vocab_size, other.vocab_size)
        different = [i for i in range(shared) if self.token(i) != other.token(i)]
        problems = []
        if different:
            shown = ", ".join(
                f"{i} is {self.token(i)!r} in one and {other.token(i)!r} in the other"
                for i in different[:3]
            )
            problems.append(f"{len(different)} of {shared} token ids differ: {shown}")
        longer = self if self.vocab_size > other.vocab_size else other
        extra = [
            index
            for index in range(shared, longer.vocab_size)
            if (text := longer.token(index)) is not None and not _PADDING.search(text)
        ]
        if extra:
            shown = ", ".join(f"{i} {longer.token(i)!r}" for i in extra[:3])
            problems.append(f"{len(extra)} token ids are only in one of the two: {shown}")
        if self.eos_ids and other.eos_ids and not self.eos_ids & other.eos_ids:
            problems.append(
                f"end of text is {sorted(self.eos_ids)} in one and "
                f"{sorted(other.eos_ids)} in the other"
            )
        return problems

    def _id(self, token: str | None, default: Any) -> int | None:
        found = None if token is None else self._backend.token_to_id(token)
        if found is None:
            return default if isinstance(default, int) else None
        return int(found)


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


def _content(token: Any) -> str | None:
    """A special token is written as a string, or as an object with its content."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _template(directory: Path, config: Mapping[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):  # several by name
        named = {t["name"]: t["template"] for t in found if isinstance(t, dict) and "name" in t}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as JSON: {error}") from None
    return found if isinstance(found, dict) else {}
