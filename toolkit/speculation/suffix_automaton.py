"""Every substring of a text that grows: how often it occurred, and what followed it most often."""

from __future__ import annotations

from collections.abc import Sequence


class SuffixAutomaton:
    """Of one sequence (Blumer et al. 1985, with counts for substrings of up to `max_size` tokens).

    A state stands for the substrings that end at the same places of the text; its link leads to
    the longest suffix of them that ends at more places. A token costs amortised O(1) for the
    automaton and at most `max_size` + 1 links for the counts, however long the text is.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        # By state; state 0 is the empty string.
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]  # of its longest substring
        self._count = [0]
        self._best: list[int | None] = [None]  # the commonest follower, the latest of equals
        self._seen = 0
        self._whole = 0  # state of the whole text
        self._end, self._size = 0, 0  # state and length of the suffix that a match begins with

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in the tokens that are new."""
        for token in tokens[self._seen :]:
            self._append(token)

    def match(self) -> int:
        """Tokens of the longest suffix, up to `max_size`, that occurred before; 0: none did."""
        return self._with_follower(self._end, self._size)[1]

    def draft(self, count: int, min_size: int) -> list[int]:
        """What mostly followed the longest such suffix, and then text and draft together."""
        state, size = self._end, self._size
        draft: list[int] = []
        while len(draft) < count:
            state, size = self._with_follower(state, size)
            token = self._best[state]
            if size < min_size or token is None:
                break
            draft.append(token)
            size = min(size + 1, self._max_size)
            state = self._holding(self._next[state][token], size)
        return draft

    def _append(self, token: int) -> None:
        before, size = self._end, self._size
        self._grow(token)
        self._seen += 1
        before = self._holding(before, size)  # a clone may hold it now
        reached = self._holding(self._next[before][token], size + 1)
        # One token more than a match may have: that is how its followers are counted.
        state = reached
        while state:
            self._count[state] += 1
            state = self._link[state]
        state = before
        while state:
            self._prefer(state, token)
            state = self._link[state]
        self._size = min(size + 1, self._max_size)
        self._end = self._holding(reached, self._size)

    def _prefer(self, state: int, token: int) -> None:
        """`token` has just followed this state once more."""
        best, following = self._best[state], self._next[state]
        if best is None or self._count[following[token]] >= self._count[following[best]]:
            self._best[state] = token

    def _grow(self, token: int) -> None:
        """The automaton of the text and one more token."""
        added = self._add({}, 0, self._length[self._whole] + 1)
        state, self._whole = self._whole, added
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = added
            state = self._link[state]
        if state < 0:
            return
        following = self._next[state][token]
        if self._length[following] == self._length[state] + 1:
            self._link[added] = following
            return
        # Only its shorter substrings end here too: they get a state of their own.
        clone = self._add(
            dict(self._next[following]), self._link[following], self._length[state] + 1
        )
        self._count[clone], self._best[clone] = self._count[following], self._best[following]
        self._link[following] = self._link[added] = clone
        while state >= 0 and self._next[state].get(token) == following:
            self._next[state][token] = clone
            state = self._link[state]

    def _add(self, following: dict[int, int], link: int, length: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._count.append(0)
        self._best.append(None)
        return len(self._next) - 1

    def _holding(self, state: int, size: int) -> int:
        """The state of the suffix of `size` tokens of a substring in `state`."""
        while state and self._length[self._link[state]] >= size:
            state = self._link[state]
        return state

    def _with_follower(self, state: int, size: int) -> tuple[int, int]:
        """The longest suffix that did not only end the text, and its length."""
        while state and self._best[state] is None:
            state = self._link[state]
            size = self._length[state]
        return state, size
