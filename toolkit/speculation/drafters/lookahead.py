"""Lookahead decoding (Fu et al. 2024): the target guesses n-grams in parallel; no second model.

With window W, n-gram size N and verification set G a step looks at
(0 if N = 1 else N - 2) + (W - 1 + G)(N - 1) draft tokens, and accepts at most N - 1 of them:
7, 7, 7 gives 5 + 13 * 6 = 83 and 6.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from toolkit.recipe.release import Release
from toolkit.recipe.schema import Speculation
from toolkit.speculation.drafters.engine_only import EngineOnlyDrafter
from toolkit.speculation.interfaces import DraftRequest, LanguageModel, Proposal
from toolkit.speculation.migration import NGRAM_COSTS
from toolkit.speculation.tensorrt import MODE, FieldPath, FlagValue

_FIELDS = ("max_window_size", "max_ngram_size", "max_verification_set_size")


def lookahead_draft_len(window: int, ngram: int, verification: int) -> int:
    """Draft tokens of one step, which an engine's max_draft_len must equal."""
    return (0 if ngram == 1 else ngram - 2) + (window - 1 + verification) * (ngram - 1)


class LookaheadSpeculation(Speculation):
    """max_draft_len follows from the three sizes and may be left out."""

    drafter: Literal["lookahead"] = "lookahead"
    max_draft_len: int = Field(83, ge=1, le=512, description="Follows from the three sizes.")
    max_window_size: int = Field(7, ge=1, le=64, description="W: guesses made side by side.")
    max_ngram_size: int = Field(7, ge=1, le=32, description="N: tokens of one n-gram.")
    max_verification_set_size: int = Field(
        7, ge=0, le=64, description="G: n-grams verified in one step."
    )

    @property
    def max_depth(self) -> int:
        return self.max_ngram_size - 1

    @model_validator(mode="before")
    @classmethod
    def _fill_in_max_draft_len(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "max_draft_len" in value:
            return value
        sizes = [value.get(name, 7) for name in _FIELDS]
        if all(isinstance(size, int) for size in sizes):
            return {**value, "max_draft_len": lookahead_draft_len(*sizes)}
        return value

    @model_validator(mode="after")
    def _sizes_agree(self) -> LookaheadSpeculation:
        window, ngram, verification = (getattr(self, name) for name in _FIELDS)
        if ngram == 1:
            raise ValueError("max_ngram_size 1 drafts nothing; use 2 or more, or drafter: none")
        needed = lookahead_draft_len(window, ngram, verification)
        if self.max_draft_len != needed:
            raise ValueError(
                f"max_draft_len is {self.max_draft_len}, but window {window}, n-gram {ngram} and "
                f"verification set {verification} need {needed}; leave it out"
            )
        return self


class NGramPool:
    """N-grams by their first token, the latest few of each."""

    def __init__(self, size: int, per_token: int) -> None:
        self._size = size
        self._per_token = per_token
        self._tails: dict[int, OrderedDict[tuple[int, ...], None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        tails = self._tails.setdefault(ngram[0], OrderedDict())
        tail = tuple(ngram[1:])
        tails[tail] = None
        tails.move_to_end(tail)
        if len(tails) > self._per_token:
            tails.popitem(last=False)

    def add_text(self, tokens: Sequence[int]) -> None:
        for start in range(len(tokens) - self._size + 1):
            self.add(tokens[start : start + self._size])

    def tails(self, token: int) -> list[tuple[int, ...]]:
        """What followed it, the latest first."""
        return list(reversed(self._tails.get(token, ())))


def tree_of(paths: Iterable[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Nodes and their parents, of paths whose common beginnings are one node each."""
    tokens: list[int] = []
    parents: list[int] = []
    known: dict[tuple[int, int], int] = {}
    for path in paths:
        node = -1
        for token in path:
            child = known.get((node, token))
            if child is None:
                child = known[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = child
    return tokens, parents


@dataclass(slots=True)
class Window:
    """Jacobi guesses of one sequence: N - 1 levels of W columns. Column 0 of the first level is the
    text's last token, whatever stands there."""

    levels: list[list[int]]
    pool: NGramPool
    last: int = 0  # the text's last token
    rows: list[list[int]] = field(default_factory=list)  # of `chosen`, in the shape of `levels`


class LookaheadDrafter(EngineOnlyDrafter):
    """The target guesses W columns of N - 1 tokens a step, each guess one iteration better.

    Guesses and n-grams go through the target as one tree: a chain of first-level guesses behind the
    text, below each of them the rest of its column, and beside them the n-grams of the pool that
    begin with the text's last token. Only those can be accepted; the guesses are probes.
    """

    Options = LookaheadSpeculation
    on_cpu = True
    reads_choices = True
    drafts_chains = False
    needs = "lookahead decoding"
    nearest: ClassVar[Mapping[str, str]] = {
        "ngram": f"{NGRAM_COSTS}; it drafts only what the text holds already",
        "sa": "as ngram, with the longest match of the text's end instead of n-grams",
    }

    def __init__(self, window: int, ngram: int, verification: int) -> None:
        self._window = window
        self._ngram = ngram
        self._verification = verification
        self._windows: dict[int, Window] = {}

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, LanguageModel]) -> LookaheadDrafter:
        return cls(*(getattr(options, name) for name in _FIELDS))

    @classmethod
    def untraceable(cls, options: Speculation, greedy: bool) -> str | None:
        return "what it guesses depends on the verify steps before"

    @classmethod
    def as_deep_as(cls, options: Speculation, depth: int) -> Mapping[str, Any]:
        window, _, verification = (getattr(options, name) for name in _FIELDS)
        return {
            "max_ngram_size": depth + 1,
            "max_draft_len": lookahead_draft_len(window, depth + 1, verification),
        }

    def begin(self, seq: int, prompt: Sequence[int]) -> None:
        pool = NGramPool(self._ngram, self._verification)
        pool.add_text(prompt)
        # Any first guess will do; tokens of the prompt are likelier to be right than others.
        source, shape = np.asarray(prompt or [0]), (self._ngram - 1, self._window)
        guesses = np.random.default_rng(len(prompt)).choice(source, shape)
        self._windows[seq] = Window(guesses.tolist(), pool)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._tree(request, self._windows[request.seq]) for request in requests]

    def _tree(self, request: DraftRequest, window: Window) -> Proposal:
        window.last = request.tokens[-1]
        tails = window.pool.tails(window.last)
        if request.matcher:  # nodes that the grammar takes out would move the window's rows
            tails = [tail[: request.matcher.prefix(tail)] for tail in tails]
        tokens, parents = tree_of(tail[: request.draft_len] for tail in tails)
        candidates = len(tokens)
        window.rows = [[] for _ in window.levels]
        first = -1  # node of the first level in this column; -1: the text
        for column in range(self._window):
            above = first
            for level, guesses in enumerate(window.levels):
                if level or column:  # column 0 begins with the text itself
                    tokens.append(guesses[column])
                    parents.append(above)
                    above = len(tokens) - 1
                if level == 0:
                    first = above
                window.rows[level].append(above + 1)  # row 0 of the answer is the text's
        return Proposal(tokens, None, tuple(parents), probes=len(tokens) - candidates)

    def chosen(self, seq: int, tokens: Sequence[int]) -> None:
        """Every column is an n-gram now; the next window is one level further on."""
        window = self._windows[seq]
        if max(map(max, window.rows)) >= len(tokens):
            return  # the end of the context cut the window off
        better = [tokens[row] for row in window.rows[-1]]
        for column in range(self._window):
            head = [guesses[column] for guesses in window.levels]
            if column == 0:
                head[0] = window.last
            window.pool.add([*head, better[column]])
        window.levels = [*window.levels[1:], better]

    def end(self, seq: int) -> None:
        self._windows.pop(seq, None)

    @classmethod
    def engine_flags(
        cls, options: Speculation, role: str, release: Release
    ) -> Mapping[str, FlagValue]:
        return {MODE: "lookahead_decoding", "max_draft_len": options.max_draft_len}

    @classmethod
    def path_len(cls, options: Speculation) -> int:
        assert isinstance(options, LookaheadSpeculation)
        return options.max_ngram_size - 1

    @classmethod
    def decoding_config(cls, options: Speculation) -> Mapping[str, Any]:
        return {"lookahead_decoding_config": {name: getattr(options, name) for name in _FIELDS}}

    @classmethod
    def triton_parameters(cls, options: Speculation) -> Mapping[str, str]:
        sizes = {
            name.replace("max_", "lookahead_"): str(getattr(options, name)) for name in _FIELDS
        }
        return {"decoding_mode": "lookahead", **sizes}

    @classmethod
    def triton_problems(
        cls, options: Speculation, release: Release
    ) -> Iterator[tuple[FieldPath, str]]:
        if release < (0, 19):
            yield (
                ("speculation", "drafter"),
                "lookahead: Triton's tensorrtllm backend has its parameters since 0.19",
            )
