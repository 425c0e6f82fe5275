"""Past outputs, sorted by suffix: what mostly followed the end of a text before.

A line of the file is {"text": "..."}, {"tokens": [...]} or {"prompt": "...", "output": "..."} as
logs of answered traffic have it; of those the output is taken.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.json_lines import parse_fields
from toolkit.speculation.interfaces import Encoder

END = -1  # stands behind every text
_FIELDS = {
    "text": str, "tokens": list, "prompt": str, "output": str,
    "domain": str, "id": str, "raw": bool,
}  # fmt: skip
_CONTENTS = ("text", "tokens", "output")
_ENOUGH = 20  # problems of one file that are worth reading


class Corpus:
    """A suffix array over all texts; read-only, so that requests share it. 8 bytes a token."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        joined = [token for text in texts for token in (*text, END)]
        self._tokens = array("i", joined)
        self._array = np.array(joined, dtype=np.int32)  # [N]
        self._order = suffix_order(self._array)  # [N] starts of suffixes, in order of their tokens

    def match(self, tokens: Sequence[int], max_size: int) -> int:
        """Tokens of the longest suffix of `tokens`, up to `max_size`, that any text holds.

        What holds a suffix holds every shorter one: O(log max_size * log N).
        """
        end = array("i", tokens[-max_size:])
        return bisect_left(
            range(1, len(end) + 1), True, key=lambda size: not self._holds(end[len(end) - size :])
        )

    def draft(self, suffix: Sequence[int], count: int) -> list[int]:
        """What mostly followed `suffix` and the draft so far; where most texts end, it ends."""
        pattern = array("i", suffix)
        key = self._beginning(len(pattern))
        low, high = (
            bisect(self._order, pattern, key=key) for bisect in (bisect_left, bisect_right)
        )
        starts, draft = self._order[low:high], list[int]()
        while len(draft) < count and len(starts):
            # The starts are sorted by what follows, so that equal followers stand together.
            following = self._array[starts + (len(pattern) + len(draft))]
            runs = np.flatnonzero(np.diff(following, prepend=END - 1))
            sizes = np.diff(runs, append=len(following))
            best = np.lexsort((np.maximum.reduceat(starts, runs), sizes))[-1]
            token = int(following[runs[best]])
            if token == END:
                break
            draft.append(token)
            starts = starts[runs[best] : runs[best] + sizes[best]]
        return draft

    def _holds(self, pattern: array[int]) -> bool:
        key = self._beginning(len(pattern))
        found = bisect_left(self._order, pattern, key=key)
        return found < len(self._order) and key(self._order[found]) == pattern

    def _beginning(self, size: int) -> Any:
        return lambda start: self._tokens[start : start + size]


def suffix_order(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Starts of all suffixes, sorted (Manber and Myers 1990: each round sorts by twice as many)."""
    count = len(tokens)
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    width = 1
    while True:
        after = np.zeros(count, np.int64)  # 0: the suffix is over
        after[: max(0, count - width)] = rank[width:] + 1
        keys = rank * (count + 1) + after
        order = np.argsort(keys, kind="stable")
        rank[order] = np.cumsum(np.diff(keys[order], prepend=keys[order[:1]]) != 0)
        if count < 2 or rank[order[-1]] == count - 1:
            return order.astype(np.int32)
        width *= 2


def load_corpus(path: Path, encoder: Encoder) -> Corpus:
    """The whole file, or what is wrong with it; once for each state of the file."""
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"speculation.corpus: {path}: {error.strerror}") from None
    return _load(path, encoder, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=2)  # a drafter is made for every loop, and in one layout for every request
def _load(path: Path, encoder: Encoder, changed_ns: int, size: int) -> Corpus:
    problems: list[str] = []
    texts: list[list[int]] = []
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    texts += _tokens(line, encoder, f"{path}:{number}", problems)
                if len(problems) > _ENOUGH:
                    problems[_ENOUGH:] = ["... and maybe more below"]
                    break
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"speculation.corpus: {path}: not readable as text: {error}") from None
    if not texts and not problems:
        problems.append(f"{path}: no text in it")
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"speculation.corpus: {len(problems)} problem(s)\n{listed}")
    return Corpus(texts)


def _tokens(line: str, encoder: Encoder, where: str, problems: list[str]) -> Iterator[list[int]]:
    value = parse_fields(line, _FIELDS, (), where, problems)
    if value is None:
        return
    given = [name for name in _CONTENTS if name in value]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        problems.append(f"{where}: expected one of {', '.join(_CONTENTS)}; found {found}")
        return
    content = value[given[0]]
    if isinstance(content, list):
        wrong = [t for t in content if type(t) is not int or not 0 <= t < encoder.vocab_size]
        if wrong:
            problems.append(
                f"{where}: tokens: {wrong[0]!r} is no token of the target "
                f"(0..{encoder.vocab_size - 1})"
            )
            return
    tokens = content if given == ["tokens"] else encoder.encode(content, add_special=False)
    if tokens:
        yield tokens
    else:
        problems.append(f"{where}: {given[0]}: empty")
