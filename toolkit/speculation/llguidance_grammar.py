"""Grammars by llguidance: JSON schema, regular expressions and EBNF over a model's own tokens.

llguidance (https://github.com/guidance-ai/llguidance) walks an Earley parser and lexers made of
derivatives over the trie of all tokens. It reads the tokenizer's tokenizer.json, needs no torch,
and TensorRT-LLM's PyTorch backend offers the same one as `guided_decoding_backend: llguidance`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np

from toolkit.errors import InputError
from toolkit.optional import require
from toolkit.speculation.grammar import Allowed, Grammar, GrammarError, Guide, Matcher

# Between tokens of JSON llguidance allows any number of blanks; a small model may never stop there.
_JSON_DEFAULTS: dict[str, Any] = {"whitespace_pattern": r"[ \n\t]{0,16}"}
_ANY_JSON = '{"type": ["object", "array"]}'
_KEPT = 64  # compiled guides that are remembered
_LONGEST_REASON = 600
_DEAD_END = "NoExtension"  # the library's word for a state that no byte leaves


class LlGuidance:
    """Compiles guides for one tokenizer. Thread-safe."""

    def __init__(
        self,
        tokenizer_json: str,  # the content of tokenizer.json
        vocab_size: int,  # added tokens included
        end_tokens: frozenset[int],
    ) -> None:
        self._library = require("llguidance", extra="cpu", why="a grammar")
        if not end_tokens:
            raise InputError(
                "the tokenizer names no end-of-text token, so a grammar could never end its text; "
                "add eos_token to tokenizer_config.json"
            )
        self._vocab_size, self._end_tokens = vocab_size, end_tokens
        ends = sorted(end_tokens)
        try:
            self._tokenizer = self._library.LLTokenizer(
                _spelled_out(tokenizer_json), n_vocab=vocab_size, eos_token=ends
            )
        except ValueError as error:
            raise InputError(
                f"this tokenizer cannot carry a grammar: {_shortened(str(error))}; byte-level BPE "
                "and byte fallback can"
            ) from None
        self._compiled: dict[Guide, Grammar] = {}
        self._lock = Lock()

    def compile(self, guide: Guide) -> Grammar:
        """Raises InputError for a guide that does not compile or that allows no text."""
        with self._lock:
            found = self._compiled.get(guide)
            if found is None:
                found = self._compile(guide)
                if len(self._compiled) >= _KEPT:
                    self._compiled.pop(next(iter(self._compiled)))  # the oldest
                self._compiled[guide] = found
            return found

    def _compile(self, guide: Guide) -> Grammar:
        matcher = self._library.LLMatcher(
            self._tokenizer,
            _source(self._library, guide),
            log_level=0,
            limits=self._library.LLParserLimits(verbose_errors=False),
        )
        if matcher.is_error():
            raise _refused(guide, matcher.get_error())
        matcher.compute_bitmask()
        if reason := _dead_end(matcher):
            raise _refused(guide, reason)
        grammar = _Compiled(guide, matcher, self._vocab_size, self._end_tokens)
        if set(np.flatnonzero(grammar.matcher().mask()).tolist()) <= self._end_tokens:
            raise _refused(guide, "it allows no text but the empty one")
        return grammar


class _Compiled(Grammar):
    def __init__(
        self, guide: Guide, start: Any, vocab_size: int, end_tokens: frozenset[int]
    ) -> None:
        self.guide = guide
        self._start, self._vocab_size, self.end_tokens = start, vocab_size, end_tokens

    def matcher(self) -> Matcher:
        return _LlMatcher(self._start.deep_copy(), self._vocab_size, self.end_tokens)


class _LlMatcher(Matcher):
    """Feeds the library's matcher with drafts and takes them back; an end token it never sees.

    (An end token where the grammar has stopped by itself does not count for the library's own
    rollback, elsewhere it does.) Where only one continuation is left, the library allows only the
    token that its tokenizer would write it with, not the pieces of that token.
    """

    def __init__(self, matcher: Any, vocab_size: int, end_tokens: frozenset[int]) -> None:
        self._matcher, self._ends = matcher, end_tokens
        self._ended = False  # an end token closed the text
        self._end_mask = np.zeros(vocab_size, np.bool_)
        self._end_mask[sorted(end_tokens)] = True
        self._masks: dict[tuple[int, ...], Allowed] = {}  # behind drafts that were asked for

    def mask(self, draft: Sequence[int] = ()) -> Allowed:
        key = tuple(draft)
        if key not in self._masks:
            self._masks[key] = self._mask(key)
        return self._masks[key]

    def advance(self, tokens: Sequence[int]) -> None:
        count, ended = self._feed(tokens)
        if count < len(tokens):
            reason = _dead_end(self._matcher) or f"token {tokens[count]} is not allowed here"
            self._take_back(count - ended)
            raise GrammarError(f"the grammar cannot go on: {reason}")
        self._ended = self._ended or ended
        self._masks.clear()

    def rollback(self, count: int) -> None:
        self._take_back(count - (self._ended and count > 0))
        self._ended = self._ended and count == 0
        self._masks.clear()

    def _mask(self, draft: Sequence[int]) -> Allowed:
        count, ended = self._feed(draft)
        try:
            if count < len(draft):
                return np.ones_like(self._end_mask)
            return self._end_mask if ended or self._ended else self._next()
        finally:
            self._take_back(count - ended)

    def _next(self) -> Allowed:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if _dead_end(self._matcher):
            return np.ones_like(self._end_mask)
        return np.unpackbits(bits, count=len(self._end_mask), bitorder="little").view(np.bool_)

    def _feed(self, tokens: Sequence[int]) -> tuple[int, bool]:
        """How many tokens may follow, and whether the last of those ended the text."""
        if self._ended or not tokens:
            return 0, False
        inner = []
        for token in tokens:
            # The library forgets a token that it refuses, but never forgives one out of range.
            if token in self._ends or not 0 <= token < len(self._end_mask):
                break
            inner.append(int(token))
        count = self._matcher.try_consume_tokens(inner)
        at_end = count == len(inner) < len(tokens) and tokens[count] in self._ends
        ended = at_end and self._matcher.is_accepting()
        return count + ended, ended

    def _take_back(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)  # refused only in an error state, which `advance` reports


def _dead_end(matcher: Any) -> str:
    """Why not even an end token may follow; empty when one may, or anything else."""
    if not matcher.is_stopped() or matcher.is_accepting():
        return ""
    reason: str = matcher.get_error()
    if not reason or reason.startswith(_DEAD_END):
        return "no token is allowed here"
    return _shortened(reason)


def _spelled_out(tokenizer_json: str) -> str:
    """A tokenizer whose tokens are written as they read, in the byte-level form of the library.

    It has no tokens of single bytes, so of letters that begin with the same byte it may find none.
    """
    found = json.loads(tokenizer_json)
    decoder, vocab = found.get("decoder"), found["model"].get("vocab")
    if (decoder or {}).get("type", "Fuse") != "Fuse" or not isinstance(vocab, dict):
        return tokenizer_json
    letters = _byte_letters()
    added = {token["content"] for token in found["added_tokens"]}
    found["model"]["vocab"] = {
        text if text in added else "".join(letters[byte] for byte in text.encode()): index
        for text, index in vocab.items()
    }
    found["model"]["merges"] = []  # only tokens are read: nothing is encoded with this
    found["decoder"] = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True
    }  # fmt: skip
    return json.dumps(found)


def _byte_letters() -> list[str]:
    """The letter that byte-level BPE writes each byte as (GPT-2's bytes_to_unicode)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _source(library: ModuleType, guide: Guide) -> str:
    """The guide in the library's own words."""
    if guide.type == "json":
        return _json_schema(library, guide, _ANY_JSON)
    if not guide.text.strip():
        raise _refused(guide, "it is empty")
    if guide.type == "json_schema":
        return _json_schema(library, guide, guide.text)
    if guide.type == "regex":
        return str(library.LLMatcher.grammar_from_regex(guide.text))
    if "::=" not in guide.text:
        raise _refused(guide, 'it has no rule; the first one is written root ::= "text" ...')
    try:
        return str(library.grammar_from("gbnf", guide.text))
    except ValueError as error:
        raise _refused(guide, str(error)) from None


def _json_schema(library: ModuleType, guide: Guide, text: str) -> str:
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise _refused(guide, f"not JSON: {error}") from None
    except RecursionError:
        raise _refused(guide, "nested too deeply") from None
    if not isinstance(schema, dict):
        raise _refused(guide, f"{_shortened(repr(schema))}, expected a schema, which is an object")
    return str(library.LLMatcher.grammar_from_json_schema(text, defaults=_JSON_DEFAULTS))


def _refused(guide: Guide, reason: str) -> InputError:
    return InputError(f"{guide.type} guide: {_shortened(reason)}")


def _shortened(reason: str) -> str:
    """The beginning says where, the end says what."""
    reason = reason.strip()
    if len(reason) <= _LONGEST_REASON:
        return reason
    return f"{reason[: _LONGEST_REASON // 2]} ... {reason[-_LONGEST_REASON // 2 :]}"
