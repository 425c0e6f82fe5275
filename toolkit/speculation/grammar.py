"""Output that a grammar constrains: which tokens may come next, and masks over logits.

A mask goes over the target's and the draft's logits before temperature, top-k and top-p. Nothing
else changes: speculation is exact with respect to the masked target as it is to any other.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError, RunError
from toolkit.recipe.guided import GuidedDecoding, GuideType

Allowed = NDArray[np.bool_]
Row = TypeVar("Row", NDArray[np.float32], NDArray[np.float64])


class GrammarError(RunError):
    """The grammar of one request cannot go on; other requests can."""


@dataclass(frozen=True, slots=True)
class Guide:
    """A grammar as it is written; types as TensorRT-LLM's guided_decoding_guide_type names them."""

    type: GuideType
    text: str = ""  # the schema, expression or grammar; `json` (any object or array) has none


def guide_of(options: GuidedDecoding) -> Guide:
    """The grammar that a recipe names, read from its file if it lies in one."""
    if options.guide_file is not None:
        return Guide(options.guide_type, read_guide(Path(options.guide_file)))
    if isinstance(options.guide, dict):
        return Guide(options.guide_type, json.dumps(options.guide, ensure_ascii=False))
    return Guide(options.guide_type, options.guide or "")


def read_guide(file: Path) -> str:
    """The text of a grammar's file."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not readable as UTF-8 text: {error}") from None


class Matcher(ABC):
    """How far one request has come in its grammar. A draft is looked at, never kept.

    Only `advance` raises: a batch must not fail because one of its requests has lost its way.
    """

    @abstractmethod
    def mask(
        self,
        draft: Sequence[int] = (),  # tokens behind the text
    ) -> Allowed:  # [V of the tokenizer], at least one True
        """Which tokens may follow the text and then `draft`.

        All of them behind a draft that breaks the grammar: its broken token has probability zero,
        so nobody draws there. All of them, too, where the grammar has no way on: then `advance`
        refuses what is drawn.
        """

    @abstractmethod
    def advance(self, tokens: Sequence[int]) -> None:
        """The text has grown; raises GrammarError for tokens that the grammar forbids."""

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens of the text, as the KV cache does."""

    def prefix(self, draft: Sequence[int]) -> int:
        """How many tokens of `draft` may follow the text one after the other."""
        stands = (self.allows(draft[:length], token) for length, token in enumerate(draft))
        return next((count for count, stand in enumerate(stands) if not stand), len(draft))

    def allows(self, draft: Sequence[int], token: int) -> bool:
        """Whether `token` may follow the text and then `draft`."""
        mask = self.mask(draft)
        return 0 <= token < len(mask) and bool(mask[token])

    def rows(
        self,
        draft: Sequence[int],  # N tokens
        parents: Sequence[int] | None = None,  # of each node of a tree; None: a chain
    ) -> list[Allowed]:  # N + 1 of them
        """The masks of a verify step: behind the text, and behind each token of the draft."""
        behind: list[list[int]] = []
        for node, token in enumerate(draft):
            parent = node - 1 if parents is None else parents[node]
            behind.append([*(behind[parent] if parent >= 0 else ()), token])
        return [self.mask(path) for path in ([], *behind)]


class Grammar(ABC):
    """A compiled guide: immutable, shared by all requests that name it."""

    guide: Guide
    end_tokens: frozenset[int]  # allowed exactly where the text is complete; one must end it

    @abstractmethod
    def matcher(self) -> Matcher:
        """A new one, at the beginning of the text."""


def masked(
    logits: Row,  # [V]
    allowed: Allowed,  # [V of the tokenizer]: rows that only pad a vocabulary are never allowed
) -> Row:  # [V], -inf where nothing is allowed
    """One row of logits under a mask."""
    size = min(len(logits), len(allowed))
    result = np.full_like(logits, -np.inf)
    np.copyto(result[:size], logits[:size], where=allowed[:size])
    return result


def masked_rows(
    logits: NDArray[np.float32],  # [R, V]
    allowed: Sequence[Allowed],  # R of them
) -> NDArray[np.float32]:  # [R, V]
    """`masked`, row by row."""
    return np.stack([masked(row, mask) for row, mask in zip(logits, allowed, strict=True)])
