"""When a request has said enough: stop tokens, stop strings, and text that must wait for them.

A stop string is matched over decoded text, so it may span tokens and chunks. The tokens of a
request end with the one that completes it; the text ends before it (`HeldText`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

# A character at the head of the window may have lost its first bytes: keep a few beyond need.
_MARGIN = 8


def find_stop(text: str, stop_strings: Sequence[str]) -> int:
    """Where the stop string that is completed first begins in `text`; -1 when there is none.

    Completed first, not begun first: so the answer does not depend on how text arrives in pieces.
    """
    starts = [(text.find(stop), stop) for stop in stop_strings]
    ends = [(start + len(stop), start) for start, stop in starts if start >= 0]
    return min(ends)[1] if ends else -1


class StopCondition:
    """Cuts the new tokens of one request behind the first stop."""

    def __init__(
        self,
        stop_tokens: frozenset[int],
        stop_strings: Sequence[str] = (),
        decode: Decode | None = None,
    ) -> None:
        if stop_strings and decode is None:
            raise ValueError("stop strings need a decode function")
        self._tokens = stop_tokens
        self._strings = tuple(stop_strings)
        self._decode = decode
        self._window: list[int] = []  # the last tokens: all that a new match can reach back to
        self._reach = max(map(len, stop_strings), default=0) + _MARGIN

    def cut(self, tokens: list[int]) -> tuple[list[int], bool]:
        """The tokens up to and including the one that ends the request, and whether one does."""
        kept = next((i for i, token in enumerate(tokens, 1) if token in self._tokens), 0)
        stopped = kept > 0
        tokens = tokens[:kept] if stopped else tokens
        if self._strings and self._decode is not None:
            completed = self._completes(tokens, self._decode)
            if completed:
                return tokens[:completed], True
        return tokens, stopped

    def _completes(self, tokens: list[int], decode: Decode) -> int:
        """How many of the new tokens it takes to complete a stop string; 0: they do not."""
        known = len(self._window)
        self._window += tokens
        if find_stop(decode(self._window), self._strings) >= 0:
            for count in range(1, len(tokens) + 1):
                if find_stop(decode(self._window[: known + count]), self._strings) >= 0:
                    return count
        self._shrink(decode)
        return 0

    def _shrink(self, decode: Decode) -> None:
        """Forget the older half once the newer one is long enough: constant work per token."""
        half = self._window[len(self._window) // 2 :]
        if len(half) >= self._reach and len(decode(half)) >= self._reach:
            self._window = half


class HeldText:
    """Streamed text that never shows a stop string, nor the beginning of one that comes true."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._strings = tuple(stop_strings)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What may be shown now; the rest waits until it cannot become a stop string."""
        if self.stopped:
            return ""
        self._held += text
        stop = find_stop(self._held, self._strings)
        if stop >= 0:
            self.stopped = True
            shown, self._held = self._held[:stop], ""
            return shown
        cut = len(self._held) - self._undecided()
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """The text that was waiting, now that no more comes."""
        shown, self._held = self._held, ""
        return shown

    def _undecided(self) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        longest = max(map(len, self._strings), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._strings):
                return size
        return 0
