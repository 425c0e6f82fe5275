"""Text of tokens that arrive a few at a time, never with half a character."""

from __future__ import annotations

from collections.abc import Callable, Iterable

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """The pieces of `push` and `finish` join to what decoding all tokens at once would give."""

    def __init__(self, decode: Callable[[list[int]], str], *, bytewise: bool) -> None:
        self._decode = decode
        # Byte-level decoding shows an unfinished character as one mark at the end. Other decoders
        # may still change every mark of the last run.
        self._bytewise = bytewise
        self._window: list[int] = []  # tokens whose text may still depend on one another
        self._context = 0  # the first of them, whose text was returned: they fix spaces
        self._shown = 0  # characters of the window's text returned so far

    def push(self, ids: Iterable[int]) -> str:
        """The text that became final with these tokens; may be empty."""
        self._window.extend(ids)
        text = self._decode(self._window)
        final = text.rstrip(UNFINISHED) if not self._bytewise else text.removesuffix(UNFINISHED)
        new = text[self._shown : len(final)]
        self._shown = max(self._shown, len(final))
        if len(final) == len(text):
            self._advance()
        return new

    def _advance(self) -> None:
        """All text is out: keep only the newest tokens, as the context of what comes next."""
        newest = self._window[self._context :]
        text = self._decode(newest)
        if text:  # special tokens alone would let the next word begin a sentence without its space
            self._window, self._context, self._shown = newest, len(newest), len(text)

    def finish(self) -> str:
        """What is left, unfinished characters as replacement marks."""
        rest = self._decode(self._window)[self._shown :]
        self._window, self._context, self._shown = [], 0, 0
        return rest
