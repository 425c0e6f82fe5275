"""A recipe on the LLM API, loaded here or served by trtllm-serve, with the loop's words.

The deployment drafts and verifies by itself, so a loop drafts either what was deployed or, on a
deployment without speculation, nothing. A streamed response says how many tokens a verify step
emitted, so accepted tokens are exact; how many it drafted is known for whole requests only, once
they end: until then a step counts as many as were deployed. Drafters that often find less (n-gram,
suffix) therefore show too low a rate in a record that was cut; the acceptance length is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.backends.llmapi_endpoint import EndpointExecutor
from toolkit.backends.llmapi_inprocess import LlmExecutor
from toolkit.backends.llmapi_requests import LlmLimits, StreamingExecutor
from toolkit.backends.runtime import Runtime
from toolkit.backends.tensorrt.loops import EngineLoop
from toolkit.checkpoint.tokenizer import Tokenizer
from toolkit.errors import InputError
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.speculation.generation import GenerationLoop
from toolkit.speculation.grammar import Grammar, Guide
from toolkit.speculation.interfaces import Drafter, LanguageModel

_NO_LOGITS = (
    "backend 'pytorch': a deployment answers with tokens, not with the logits that this needs; "
    "run it on backend cpu, or ask servers with and without speculation: spectool verify URL "
    "--plain URL"
)
_NO_GRAMMAR = (
    "backend 'pytorch': spectool sends a deployment no grammars; ask it with response_format "
    "(pytorch.guided_decoding), or run the recipe on backend cpu"
)


@dataclass(frozen=True)
class LlmRuntime(Runtime):
    """A deployment that generates by itself; `models` is empty, since it shows no logits."""

    executor: StreamingExecutor

    @property
    def target(self) -> LanguageModel:
        raise InputError(_NO_LOGITS)

    def drafter(self) -> Drafter | None:
        raise InputError(_NO_LOGITS)

    def grammar(self, guide: Guide | None = None) -> Grammar | None:
        if guide is not None:
            raise InputError(_NO_GRAMMAR)
        return None

    def loop(
        self, *, draft_len: int | None = None, max_prefill_tokens: int | None = None
    ) -> GenerationLoop:
        """A new loop. The deployment decides by itself how prompts are read."""
        deployed = self.executor.limits.path_len
        if draft_len not in (None, deployed):
            raise InputError(
                f"draft_len {draft_len}: this deployment always drafts {deployed} token(s) a "
                "step; deploy a recipe with that speculation.max_draft_len, or drafter: none for "
                "plain decoding"
            )
        return EngineLoop(self.executor, path_len=deployed, decode=self.tokenizer.decode)

    def close(self) -> None:
        self.executor.close()


def open_llm(
    recipe: Recipe, llm_args: Mapping[str, Any], tokenizer: Tokenizer, *, timeout_s: float = 600.0
) -> LlmRuntime:
    """The model in this process, with the arguments that would be deployed."""
    limits = limits_of(recipe, tokenizer)
    return LlmRuntime(recipe, {}, tokenizer, LlmExecutor(llm_args, limits, timeout_s=timeout_s))


def open_endpoint(
    recipe: Recipe, url: str, tokenizer: Tokenizer, *, timeout_s: float = 600.0
) -> LlmRuntime:
    """The recipe as trtllm-serve runs it at `url`."""
    limits = limits_of(recipe, tokenizer)
    return LlmRuntime(recipe, {}, tokenizer, EndpointExecutor(url, limits, timeout_s=timeout_s))


def limits_of(recipe: Recipe, tokenizer: Tokenizer) -> LlmLimits:
    """What the recipe's deployment takes."""
    options = recipe.speculation
    plain = options.drafter == "none"
    return LlmLimits(
        path_len=0 if plain else DRAFTERS[options.drafter].path_len(options),
        vocab_size=tokenizer.vocab_size,
        max_seq_len=recipe.engine.max_seq_len,
        max_batch_size=recipe.engine.max_batch_size,
    )
