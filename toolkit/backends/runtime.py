"""Everything that generates text for one recipe: its models, tokenizer, drafter and loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.backends.interfaces import DEFAULT_CACHE, CacheOptions
from toolkit.checkpoint.tokenizer import Tokenizer, load_tokenizer
from toolkit.engine.built import BuiltModels
from toolkit.errors import InputError
from toolkit.recipe.schema import Recipe
from toolkit.registry import BACKENDS, DRAFTERS
from toolkit.speculation.draft_length import DraftLengthPolicy, Fixed, draft_length_policy
from toolkit.speculation.generation import GenerationLoop
from toolkit.speculation.grammar import Grammar, Guide, guide_of
from toolkit.speculation.interfaces import Drafter, LanguageModel, SamplingParams
from toolkit.speculation.loop import SpeculativeLoop
from toolkit.speculation.teacher_forced import true_token_probs
from toolkit.speculation.timed import TimedLoop, timed_loop
from toolkit.speculation.trace import Tracer


@dataclass(frozen=True)
class Runtime:
    """Loaded models of one recipe. One loop at a time: loops share the models' KV memory."""

    recipe: Recipe
    models: Mapping[str, Any]  # by role: language models, and `heads`
    tokenizer: Tokenizer

    @property
    def target(self) -> LanguageModel:
        target: LanguageModel = self.models["target"]
        return target

    def drafter(self) -> Drafter | None:
        """A new drafter on the loaded models; None when the recipe decodes plainly."""
        options = self.recipe.speculation
        if options.drafter == "none":
            return None
        drafter: Drafter = DRAFTERS[options.drafter].create(options, self.models)
        drafter.prepare(self.tokenizer)
        return drafter

    def grammar(self, guide: Guide | None = None) -> Grammar | None:
        """What a request's output obeys: its own guide, else the recipe's, else nothing."""
        if guide is None and self.recipe.guided_decoding:
            guide = guide_of(self.recipe.guided_decoding)
        return None if guide is None else self.tokenizer.grammar(guide)

    def loop(
        self,
        *,
        draft_len: int | None = None,
        max_prefill_tokens: int | None = None,
    ) -> GenerationLoop:
        """A new loop. draft_len 0: plain decoding; None: the recipe's policy."""
        options = self.recipe.speculation
        policy = draft_length_policy(options) if draft_len is None else Fixed(draft_len)
        drafter = None if draft_len == 0 else self.drafter()
        reading = {} if max_prefill_tokens is None else {"max_prefill_tokens": max_prefill_tokens}
        return SpeculativeLoop(
            self.target,
            drafter,
            policy,
            decode=self.tokenizer.decode,
            posterior_threshold=DRAFTERS[options.drafter].posterior_threshold(options),
            **reading,
        )

    @property
    def max_seq_len(self) -> int:
        """Tokens of a request, prompt and output together."""
        return self.target.max_seq_len

    def tracer(self) -> Tracer | None:
        """What reads a text as the recipe's drafter would; None when it decodes plainly."""
        return self.drafter()

    def token_probs(
        self, prompt: Sequence[int], output: Sequence[int], sampling: SamplingParams
    ) -> NDArray[np.float64]:  # [T]
        """The target's probability of each output token; greedy: 1 for its choice, else 0."""
        return true_token_probs(self.target, prompt, output, sampling)

    def timed_loop(self, policy: DraftLengthPolicy, max_prefill_tokens: int) -> TimedLoop:
        """A new loop with the recipe's drafter for measuring its steps."""
        drafter = self.drafter()
        assert drafter is not None  # nobody times the steps of a recipe without one
        return timed_loop(self.target, drafter, policy, max_prefill_tokens=max_prefill_tokens)


def open_runtime(
    built: BuiltModels,
    *,
    threads: int | None = None,
    cache: CacheOptions = DEFAULT_CACHE,
) -> Runtime:
    """Load every engine, after checking that all models speak the target's tokens."""
    tokenizer = _tokenizer(built)
    runtime: Runtime = BACKENDS[built.recipe.backend]().open(
        built, tokenizer, threads=threads, cache=cache
    )
    return runtime


def open_beside(
    built: BuiltModels, other: Runtime, engines: Mapping[str, Path], *, threads: int | None = None
) -> Runtime:
    """Another drafter for a target that is loaded already, where both have the same engine.

    `engines` are those that `other` was loaded from; what they share is not loaded twice.
    """
    shared = {
        role: other.models[role]
        for role, path in built.engines.items()
        if engines.get(role) == path
    }
    if "target" not in shared:
        return open_runtime(built, threads=threads)
    tokenizer = _tokenizer(built)
    left = {role: path for role, path in built.engines.items() if role not in shared}
    found = BACKENDS[built.recipe.backend]().open(
        replace(built, engines=left), tokenizer, threads=threads
    )
    return Runtime(built.recipe, {**shared, **found.models}, tokenizer)


def connect_runtime(built: BuiltModels, url: str) -> Runtime:
    """The recipe where a server runs it already."""
    runtime: Runtime = BACKENDS[built.recipe.backend]().connect(built, _tokenizer(built), url)
    return runtime


def _tokenizer(built: BuiltModels) -> Tokenizer:
    tokenizer = load_tokenizer(built.tokenizer_dir)
    _check_tokenizers(tokenizer, built.tokenizers)
    return tokenizer


def _check_tokenizers(target: Tokenizer, tokenizers: Mapping[str, Path]) -> None:
    """A draft token means what the target's token of that number means, or nothing works."""
    problems = [
        f"{role}: {difference}"
        for role, directory in tokenizers.items()
        if role != "target"
        for difference in target.compare(load_tokenizer(directory))
    ]
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"the models' tokenizers differ; draft and target must share one\n{lines}")
