"""Matchers that outlive a call: each call brings the whole text, and a matcher walks on from there.

Like `sequences.py` for KV caches: a request's matcher is rolled back to what the new call shares
with it, instead of reading all of the text again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from toolkit.speculation.grammar import Grammar, Matcher


@dataclass(slots=True)
class GuidedText:
    """The text of one request under its grammar, from where the grammar begins."""

    grammar: Grammar
    matcher: Matcher
    tokens: list[int] = field(default_factory=list)

    def move_to(self, tokens: Sequence[int]) -> None:
        """Stand behind `tokens`; raises GrammarError when the grammar forbids them."""
        pairs = enumerate(zip(self.tokens, tokens, strict=False))
        most = min(len(self.tokens), len(tokens))
        shared = next((i for i, (mine, theirs) in pairs if mine != theirs), most)
        self.matcher.rollback(len(self.tokens) - shared)
        del self.tokens[shared:]
        self.advance(tokens[shared:])

    def advance(self, tokens: Sequence[int]) -> None:
        self.matcher.advance(tokens)
        self.tokens += tokens


class MatcherPool:
    """The matchers of requests that have an id, until they are released. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[str, GuidedText] = {}

    def acquire(self, grammar: Grammar, tokens: Sequence[int], owner: str = "") -> GuidedText:
        """One that stands behind `tokens`; raises GrammarError as `GuidedText.move_to` does."""
        kept = self._kept.get(owner)
        text = kept if kept and kept.grammar is grammar else GuidedText(grammar, grammar.matcher())
        text.move_to(tokens)
        if owner:
            self._kept[owner] = text
        return text

    def release(self, owner: str) -> None:
        self._kept.pop(owner, None)
