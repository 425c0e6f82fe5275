"""What is verified: something that answers one prompt with and without speculation.

A loaded recipe answers with tokens and shows its logits; a server may show tokens, or only text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.speculation.generation import GenerationLoop
from toolkit.speculation.grammar import Grammar, masked
from toolkit.speculation.interfaces import LanguageModel, SamplingParams, SpeculationStats, Step
from toolkit.speculation.request import GREEDY, Output, Request

# How far two computations of one logit may lie apart, as a part of the row's largest |logit|: four
# times the rounding of the 16-bit types (2^-8, 2^-11). float32 differs by the order of sums over
# thousands of terms, 128 times its rounding (2^-24).
ROUNDING = {"bfloat16": 2.0**-6, "float16": 2.0**-9, "float32": 2.0**-17}

Advance = Callable[[float], None]


def no_advance(count: float) -> None:
    """Nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One prompt and how it is to be answered; `tokens` where the subject takes tokens."""

    domain: str
    id: str
    text: str
    tokens: tuple[int, ...] = ()
    max_tokens: int
    sampling: SamplingParams = GREEDY


@dataclass(frozen=True)
class Counts:
    """Speculation counts of some answers; they add."""

    verify_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    first_drafts: int = 0  # verify steps that had a draft
    first_accepted: int = 0  # and accepted the first token of it

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.verify_steps + other.verify_steps,
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            self.first_drafts + other.first_drafts,
            self.first_accepted + other.first_accepted,
        )

    @classmethod
    def of(cls, stats: SpeculationStats) -> Counts:
        steps = list(zip(stats.drafted_per_step, stats.accepted_per_step, strict=True))
        return cls(
            stats.verify_steps,
            stats.draft_tokens,
            stats.accepted_tokens,
            sum(drafted > 0 for drafted, _ in steps),
            sum(accepted > 0 for _, accepted in steps),
        )


@dataclass(frozen=True)
class Answer:
    """A continuation; `units` are its tokens, or its characters where nothing else is shown."""

    units: tuple[Hashable, ...]
    text: str
    counts: Counts | None  # None: the server does not tell


@dataclass(frozen=True)
class Gap:
    """How far the worse of two units lies below the best one, in logits, and what is rounding."""

    value: float
    bound: float


class Subject(ABC):
    """Speculation on and off, of one deployment."""

    unit: Literal["token", "character"] = "token"
    rounding: str  # whose rounding a tie is within, for people

    @abstractmethod
    def answer(
        self, questions: Sequence[Question], *, speculate: bool, advance: Advance = no_advance
    ) -> list[Answer]:
        """In the questions' order."""

    @abstractmethod
    def gap(
        self,
        question: Question,
        common: Sequence[Hashable],
        pair: tuple[Hashable | None, Hashable | None],  # None: the text ended there
    ) -> Gap | None:
        """What plain decoding thinks of two ways to go on; None when it cannot be asked."""

    def show(self, unit: Hashable) -> str:
        """For people."""
        return repr(unit)


class EngineSubject(Subject):
    """Loaded models; the target's logits, read afresh, are the judge."""

    def __init__(
        self,
        target: LanguageModel,
        loop: Callable[[bool], GenerationLoop],  # True: with speculation
        *,
        dtype: str,
        stop_tokens: frozenset[int],
        grammar: Grammar | None = None,  # what every text obeys, on both sides
        batch: int = 4,
        decode: Callable[[Sequence[int]], str] = lambda tokens: "",
        show: Callable[[int], str] = repr,
    ) -> None:
        if dtype not in ROUNDING:
            raise InputError(f"dtype {dtype!r} is not one of {', '.join(ROUNDING)}")
        self.rounding = dtype
        self._target, self._loop, self._decode, self._show = target, loop, decode, show
        self._stop_tokens, self._grammar, self._batch = stop_tokens, grammar, batch

    def answer(
        self, questions: Sequence[Question], *, speculate: bool, advance: Advance = no_advance
    ) -> list[Answer]:
        loop, answers = self._loop(speculate), []
        for start in range(0, len(questions), self._batch):
            group = [self._request(q) for q in questions[start : start + self._batch]]
            answers += [self._answer(output) for output in loop.generate(group)]
            advance(len(group))
        return answers

    def _request(self, question: Question) -> Request:
        return Request(
            question.tokens,
            question.max_tokens,
            question.sampling,
            stop_tokens=self._stop_tokens,
            grammar=self._grammar,
        )

    def _answer(self, output: Output) -> Answer:
        return Answer(tuple(output.tokens), self._decode(output.tokens), Counts.of(output.stats))

    def gap(
        self,
        question: Question,
        common: Sequence[Hashable],
        pair: tuple[Hashable | None, Hashable | None],
    ) -> Gap | None:
        if None in pair:
            return None  # a stop token is a token here: no rounding ends a text without one
        logits = _logits(self._target, [*question.tokens, *map(_token, common)])
        bound = ROUNDING[self.rounding] * float(np.abs(logits).max())
        if self._grammar:
            matcher = self._grammar.matcher()
            matcher.advance([*map(_token, common)])
            logits = masked(logits, matcher.mask())
        worse = min(float(logits[_token(token)]) for token in pair)
        if worse == -np.inf:
            return None  # a token that the grammar forbids has no gap; nothing excuses it
        return Gap(float(logits.max()) - worse, bound)

    def show(self, unit: Hashable) -> str:
        return self._show(_token(unit))


def _token(unit: Hashable | None) -> int:
    assert isinstance(unit, int)
    return unit


def _logits(target: LanguageModel, tokens: Sequence[int]) -> NDArray[np.float32]:  # [V]
    """What the target says after these tokens, read afresh."""
    seq = target.open()
    try:
        [output] = target.forward([Step(seq, np.asarray(tokens, dtype=np.int64))])
        logits: NDArray[np.float32] = output.logits[0]
        return logits
    finally:
        target.close(seq)
