"""Suffix decoding (Oliaro et al. 2024): the longest match of the text's end drafts.

It is looked up in the request's own prompt and output and, where there is one, in a corpus of past
outputs; the longer match drafts, the own text's when both are as long. Where the match went on in
several ways, the most frequent is drafted, and of equally frequent ones the latest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from toolkit.recipe.schema import Recipe, Speculation
from toolkit.speculation.corpus import Corpus, load_corpus
from toolkit.speculation.drafters.sa import SaDrafter
from toolkit.speculation.interfaces import Drafter, DraftRequest, Encoder, LanguageModel, Proposal
from toolkit.speculation.suffix_automaton import SuffixAutomaton
from toolkit.speculation.tensorrt import FieldPath


class SuffixSpeculation(Speculation):
    """No second model; prompt, output and past outputs are searched."""

    drafter: Literal["suffix"] = "suffix"
    max_matching_ngram_size: int = Field(
        64, ge=1, le=256, description="The longest suffix to look for."
    )
    min_matching_ngram_size: int = Field(
        1, ge=1, le=256, description="Suffixes shorter than this are not worth a draft."
    )
    max_draft_factor: float | None = Field(
        None,
        gt=0,
        le=64,
        description="Draft at most this many tokens for each token that matched, and at least one; "
        "null: as many as may be drafted.",
    )
    corpus: str | None = Field(
        None,
        min_length=1,
        description='JSONL file of past outputs, {"text": ...}, {"tokens": [...]} or '
        '{"prompt": ..., "output": ...} a line.',
    )

    @model_validator(mode="after")
    def _sizes_in_order(self) -> SuffixSpeculation:
        if self.min_matching_ngram_size > self.max_matching_ngram_size:
            raise ValueError(
                f"min_matching_ngram_size {self.min_matching_ngram_size} is above "
                f"max_matching_ngram_size {self.max_matching_ngram_size}"
            )
        return self


class SuffixDrafter(Drafter):
    """Keeps one suffix automaton per sequence, in O(new tokens) a step; all share the corpus."""

    Options = SuffixSpeculation
    nearest: ClassVar[Mapping[str, str]] = {
        "sa": "the longest match of the text's end as well, looked up on the GPU; past outputs are "
        "those of its own requests (enable_global_pool)",
        "ngram": "the latest match of a few tokens, in the request's own text only",
    }

    def __init__(self, options: SuffixSpeculation | None = None) -> None:
        self._options = options or SuffixSpeculation()
        self._corpus: Corpus | None = None
        self._texts: dict[int, SuffixAutomaton] = {}

    @classmethod
    def unsupported_on(cls, backend: str, version: str) -> str | None:
        if backend == "cpu":
            return None
        other = "ngram"
        if SaDrafter.unsupported_on(backend, version) is None:
            other = "sa, which looks the longest match up on the GPU, or drafter: ngram"
        return f"backend {backend!r} has no lookup in past outputs' suffixes; use drafter: {other}"

    @classmethod
    def cpu_problems(cls, recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, SuffixSpeculation)
        if options.corpus is not None and not Path(options.corpus).is_file():
            yield (
                ("speculation", "corpus"),
                f"{options.corpus}: no such file; name a JSONL file of past outputs, or remove it",
            )

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, LanguageModel]) -> SuffixDrafter:
        assert isinstance(options, SuffixSpeculation)
        return cls(options)

    def prepare(self, encoder: Encoder) -> None:
        if self._options.corpus is not None:
            self._corpus = load_corpus(Path(self._options.corpus), encoder)

    def begin(self, seq: int, prompt: Sequence[int]) -> None:
        assert self._corpus or self._options.corpus is None, "prepare() reads the corpus"
        self._texts[seq] = SuffixAutomaton(self._options.max_matching_ngram_size)
        self._texts[seq].extend(prompt)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal(self._lookup(request)) for request in requests]

    def _lookup(self, request: DraftRequest) -> list[int]:
        options, text, tokens = self._options, self._texts[request.seq], request.tokens
        text.extend(tokens)
        own, past = text.match(), 0
        if self._corpus:
            past = self._corpus.match(tokens, options.max_matching_ngram_size)
        if self._corpus and past > own and past >= options.min_matching_ngram_size:
            draft = self._corpus.draft(tokens[-past:], self._most(past, request.draft_len))
            if draft:  # past outputs may have ended there
                return draft
        return text.draft(self._most(own, request.draft_len), options.min_matching_ngram_size)

    def _most(self, matched: int, draft_len: int) -> int:
        factor = self._options.max_draft_factor
        return draft_len if factor is None else min(draft_len, max(1, int(factor * matched)))

    def end(self, seq: int) -> None:
        self._texts.pop(seq, None)
