"""Prompt lookup: draft whatever followed the latest earlier copy of the current suffix.

With max_matching_ngram_size 2 and the tokens 7 8 9 1 7 8, the suffix 7 8 occurred before and was
followed by 9 1 7 8 ...: a draft of length 3 is 9 1 7. A copy that reaches the end of the text reads
on in what it has drafted, so that 5 6 5 6 continues 5 6 5 6 5 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from toolkit.recipe.release import Release, Version
from toolkit.recipe.schema import Recipe, Speculation
from toolkit.speculation.interfaces import Drafter, DraftRequest, LanguageModel, Proposal
from toolkit.speculation.tensorrt import FieldPath, FlagValue, external_draft_flags


class NGramSpeculation(Speculation):
    """Drafts are copied from the prompt and the output so far; no second model."""

    drafter: Literal["ngram"] = "ngram"
    max_matching_ngram_size: int = Field(
        4, ge=1, le=64, description="The longest suffix to look for; longest match first."
    )
    min_matching_ngram_size: int = Field(
        1, ge=1, le=64, description="Suffixes shorter than this are not worth a draft."
    )

    @model_validator(mode="after")
    def _sizes_in_order(self) -> NGramSpeculation:
        if self.min_matching_ngram_size > self.max_matching_ngram_size:
            raise ValueError(
                f"min_matching_ngram_size {self.min_matching_ngram_size} is above "
                f"max_matching_ngram_size {self.max_matching_ngram_size}"
            )
        return self


class NGramIndex:
    """Every n-gram of one sequence -> the position that follows its latest occurrence."""

    def __init__(self, min_size: int, max_size: int) -> None:
        self._sizes = range(max_size, min_size - 1, -1)
        self._follows: dict[tuple[int, ...], int] = {}
        self._seen = 0  # n-grams that end before this position are in the table

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in the tokens that are new; the current suffix stays out, having no follower."""
        for end in range(self._seen + 1, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._follows[tuple(tokens[end - size : end])] = end
        self._seen = max(self._seen, len(tokens) - 1)

    def follower(self, tokens: Sequence[int]) -> int | None:
        """The position after the latest earlier copy of the longest suffix that has one."""
        for size in self._sizes:
            found = self._follows.get(tuple(tokens[-size:])) if size < len(tokens) else None
            if found is not None:
                return found
        return None


class NGramDrafter(Drafter):
    """Keeps one index per sequence; a step costs O(new tokens)."""

    Options = NGramSpeculation
    llmapi_since = "1.0"
    optional: ClassVar[Mapping[str, tuple[str, ...]]] = {"min_matching_ngram_size": ()}

    def __init__(self, min_size: int = 1, max_size: int = 4) -> None:
        self._sizes = (min_size, max_size)
        self._indices: dict[int, NGramIndex] = {}

    @classmethod
    def engine_flags(
        cls, options: Speculation, role: str, release: Release
    ) -> Mapping[str, FlagValue]:
        return external_draft_flags(options, role)

    @classmethod
    def speculative_config(cls, options: Speculation, release: Version) -> dict[str, Any]:
        assert isinstance(options, NGramSpeculation)
        return {
            "max_draft_len": options.max_draft_len,
            "max_matching_ngram_size": options.max_matching_ngram_size,
            # As here: the latest match, in the request's own text.
            "is_use_oldest": False,
            "is_public_pool": False,
        }

    @classmethod
    def in_target_graph(cls, options: Speculation, release: Version) -> bool:
        return False

    @classmethod
    def overlaps(cls, options: Speculation, release: Version) -> bool:
        return False

    @classmethod
    def llmapi_problems(cls, recipe: Recipe, release: Version) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, NGramSpeculation)
        if options.min_matching_ngram_size != 1:
            yield (
                ("speculation", "min_matching_ngram_size"),
                "TensorRT-LLM matches down to one token and has no such limit; remove it",
            )

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, LanguageModel]) -> NGramDrafter:
        assert isinstance(options, NGramSpeculation)
        return cls(options.min_matching_ngram_size, options.max_matching_ngram_size)

    def begin(self, seq: int, prompt: Sequence[int]) -> None:
        self._indices[seq] = NGramIndex(*self._sizes)
        self._indices[seq].extend(prompt)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal(self._lookup(request)) for request in requests]

    def _lookup(self, request: DraftRequest) -> list[int]:
        index, tokens = self._indices[request.seq], request.tokens
        index.extend(tokens)
        source = index.follower(tokens)
        if source is None:
            return []
        period = len(tokens) - source  # beyond it the copy reads its own output
        draft = list(tokens[source : source + request.draft_len])
        while len(draft) < request.draft_len:
            draft.append(draft[len(draft) - period])
        return draft

    def end(self, seq: int) -> None:
        self._indices.pop(seq, None)
