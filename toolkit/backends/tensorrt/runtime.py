"""A recipe's engines at work: which loop they need, and how they share the GPU's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.backends.runtime import Runtime
from toolkit.backends.tensorrt.drafts import LookupDrafts, ModelDrafts, greedy_choices
from toolkit.backends.tensorrt.executor import EngineExecutor, Settings
from toolkit.backends.tensorrt.loops import EngineLoop, ExternalLoop
from toolkit.backends.tensorrt.timed import TimedDrafts, TimedEngine
from toolkit.checkpoint.tokenizer import Tokenizer
from toolkit.engine.built import BuiltModels
from toolkit.engine.trtllm.directory import TrtEngine, read_engine
from toolkit.errors import InputError
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.speculation.draft_length import DraftLengthPolicy, Fixed, draft_length_policy
from toolkit.speculation.generation import GenerationLoop
from toolkit.speculation.grammar import Grammar, Guide
from toolkit.speculation.interfaces import Drafter, LanguageModel, SamplingParams
from toolkit.speculation.tensorrt import EXTERNAL
from toolkit.speculation.timed import RandomDrafts, Stopwatch, TimedLoop
from toolkit.speculation.trace import Tracer

_NO_LOGITS = (
    "backend 'tensorrt': engines answer with tokens, not with the logits that this needs; run it "
    "on backend cpu, or ask the deployed model (spectool verify URL, spectool bench)"
)
_NO_GRAMMAR = (
    "backend 'tensorrt': spectool gives engines no grammars here; serve them with "
    "serve.tensorrt.guided_decoding, or run the recipe on backend cpu"
)


@dataclass(frozen=True)
class EngineRuntime(Runtime):
    """Engines that generate by themselves; `models` is empty, since they show no logits."""

    executors: Mapping[str, EngineExecutor]
    external: bool

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
        """A new loop. The executor decides by itself how prompts are read."""
        options, target = self.recipe.speculation, self.executors["target"]
        decode = self.tokenizer.decode
        if self.external:
            policy = draft_length_policy(options) if draft_len is None else Fixed(draft_len)
            drafts = None if draft_len == 0 else self._drafts()
            return ExternalLoop(target, drafts, policy, decode=decode)
        path_len = 0
        if target.max_draft_len:
            path_len = DRAFTERS[options.drafter].path_len(options)
        if draft_len not in (None, path_len):
            raise InputError(
                f"draft_len {draft_len}: an engine with {options.drafter} inside always drafts "
                f"{path_len} token(s) a step; for plain decoding build with drafter: none"
            )
        return EngineLoop(target, path_len=path_len, decode=decode)

    @property
    def max_seq_len(self) -> int:
        return self.executors["target"].max_seq_len

    def tracer(self) -> Tracer | None:
        """See TensorrtBackend.untraceable: greedy texts only, and not of drafts inside."""
        return self._drafts()

    def token_probs(
        self, prompt: Sequence[int], output: Sequence[int], sampling: SamplingParams
    ) -> NDArray[np.float64]:
        if not sampling.greedy:
            raise InputError(_NO_LOGITS)
        return greedy_choices(self.executors["target"], prompt, output)

    def timed_loop(self, policy: DraftLengthPolicy, max_prefill_tokens: int) -> TimedLoop:
        """The executor decides by itself how prompts are read."""
        target, clock = self.executors["target"], perf_counter_ns
        verifying, drafting = Stopwatch(clock), Stopwatch(clock)
        drafts = TimedDrafts(self._drafts(), drafting, RandomDrafts(target.vocab_size))
        loop = ExternalLoop(TimedEngine(target, verifying), drafts, policy)
        return TimedLoop(loop, verifying, drafting, clock)

    def close(self) -> None:
        for executor in self.executors.values():
            executor.close()

    def _drafts(self) -> LookupDrafts | ModelDrafts:
        options = self.recipe.speculation
        if "draft" in self.executors:
            return ModelDrafts(self.executors["draft"], use_logits=_by_logits(self.recipe))
        return LookupDrafts(DRAFTERS[options.drafter].create(options, {}))


def open_engines(built: BuiltModels, tokenizer: Tokenizer) -> EngineRuntime:
    """Load every engine, the target first."""
    recipe = built.recipe
    engines = {role: read_engine(path) for role, path in built.engines.items()}
    external = engines["target"].mode == EXTERNAL
    _check(recipe, engines)
    fractions = memory_shares(engines, recipe.tensorrt.kv_cache_fraction)
    options = recipe.speculation
    decoding = DRAFTERS[options.drafter].decoding_config(options)
    executors: dict[str, EngineExecutor] = {}
    try:
        for role in sorted(engines, key=lambda role: role != "target"):
            settings = Settings(
                kv_cache_fraction=fractions[role],
                decoding=decoding if role == "target" else None,
                block_reuse=external,
                generation_logits=_by_logits(recipe),
                orchestrated=len(engines) > 1 or engines[role].world_size > 1,
            )
            executors[role] = EngineExecutor(engines[role], settings)
    except BaseException:
        for executor in executors.values():
            executor.close()
        raise
    return EngineRuntime(recipe, {}, tokenizer, executors, external)


def memory_shares(engines: Mapping[str, TrtEngine], fraction: float) -> dict[str, float]:
    """Of the memory that is free when an engine's weights are loaded, what its KV cache takes.

    The target loads first and must leave the others their share of KV memory; each takes the same
    fraction of what is free when its turn comes, so the shares are of a rest, not of the whole.
    """
    sizes = {role: kv_bytes_per_token(engine.pretrained) for role, engine in engines.items()}
    shares, rest = {}, float(sum(sizes.values()))
    for role in sorted(engines, key=lambda role: role != "target"):
        shares[role] = fraction * sizes[role] / rest
        rest -= sizes[role]
    return shares


def kv_bytes_per_token(pretrained: Mapping[str, Any]) -> int:
    """Keys and values of all layers for one token, on one rank."""
    ranks = int(pretrained["mapping"]["tp_size"])
    heads = max(int(pretrained["num_key_value_heads"]) // ranks, 1)
    layers = int(pretrained["num_hidden_layers"])
    layers += int((pretrained.get("eagle_net_config") or {}).get("num_hidden_layers", 0))
    quantized = (pretrained.get("quantization") or {}).get("kv_cache_quant_algo")
    return 2 * layers * heads * int(pretrained["head_size"]) * (1 if quantized else 2)


def _by_logits(recipe: Recipe) -> bool:
    return bool(getattr(recipe.speculation, "use_draft_logits", False))


def _check(recipe: Recipe, engines: Mapping[str, TrtEngine]) -> None:
    """The engines are those of this recipe, and can work together."""
    problems = []
    target, drafted = engines["target"], recipe.speculation.max_draft_len
    if target.mode and target.max_draft_len < drafted:
        problems.append(
            f"target: built for {target.max_draft_len} draft tokens, the recipe wants {drafted}"
        )
    for role, engine in engines.items():
        if target.mode == EXTERNAL and not engine.block_reuse:
            problems.append(
                f"{role}: built without paged context FMHA, so KV blocks cannot be reused"
            )
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"{recipe.name}: these engines do not fit the recipe\n{lines}")
