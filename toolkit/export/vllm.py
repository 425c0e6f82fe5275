"""vLLM: `vllm serve MODEL` with one JSON object for everything about speculation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.export.peer import Answer, Method, Option, Peer
from toolkit.export.weights import bare_draft, draft_of, hugging_face, quantized
from toolkit.recipe.schema import ModelSpec, Recipe
from toolkit.registry import DRAFTERS
from toolkit.speculation.draft_length import batch_ranges
from toolkit.speculation.drafters.ngram import NGramSpeculation
from toolkit.speculation.drafters.suffix import SuffixSpeculation

TITLE = "vLLM"
CONFIG = "--speculative-config"
QUANTIZATION = {"fp8": "modelopt"}  # the checkpoint is ModelOpt's

OPTIONS = {
    "--revision": Option("str", "branch, tag or commit of the model"),
    "--dtype": Option("auto|half|float16|bfloat16|float|float32", "of weights and activations"),
    "--quantization": Option("str", "how the weights are quantised"),
    "--tensor-parallel-size": Option("int", "GPUs that share each layer"),
    "--pipeline-parallel-size": Option("int", "GPUs that share the layers"),
    "--max-model-len": Option("int", "prompt and output of one request"),
    "--max-num-seqs": Option("int", "requests in one iteration"),
    "--max-num-batched-tokens": Option("int", "tokens in one iteration"),
    "--host": Option("str", "address to listen on"),
    "--port": Option("int", "port to listen on"),
    CONFIG: Option("json", "see CONFIG_KEYS"),
}
CONFIG_KEYS = {
    "method": Option(
        "draft_model|ngram|suffix|mtp|eagle|eagle3|medusa|dflash|dspark", "who drafts"
    ),
    "model": Option("str", "draft model or head"),
    "num_speculative_tokens": Option("int", "draft tokens of one step"),
    "draft_tensor_parallel_size": Option("int", "1 or the target's"),
    "quantization": Option("str", "of the draft model"),
    "max_model_len": Option("int", "of the draft model"),
    "revision": Option("str", "of the draft model"),
    "prompt_lookup_max": Option("int", "longest n-gram to look for"),
    "prompt_lookup_min": Option("int", "shortest n-gram to look for"),
    "suffix_decoding_max_tree_depth": Option("int", "match and draft together, at most"),
    "suffix_decoding_max_cached_requests": Option("int", "past outputs to keep; 0: none"),
    "suffix_decoding_max_spec_factor": Option("float", "draft tokens for each that matched"),
    "parallel_drafting": Option("flag", "all draft tokens in one pass"),
    "draft_sample_method": Option("greedy|probabilistic", "how the draft chooses"),
    "num_speculative_tokens_per_batch_size": Option(
        "json", "[first, last, draft tokens] by batch size"
    ),
}


def _ngram(recipe: Recipe, answer: Answer) -> None:
    options = recipe.speculation
    assert isinstance(options, NGramSpeculation)
    answer.said |= {"max_matching_ngram_size", "min_matching_ngram_size"}
    _speculate(
        recipe,
        answer,
        method="ngram",
        prompt_lookup_max=options.max_matching_ngram_size,
        prompt_lookup_min=options.min_matching_ngram_size,
    )


def _suffix(recipe: Recipe, answer: Answer) -> None:
    options = recipe.speculation
    assert isinstance(options, SuffixSpeculation)
    answer.said |= {"max_matching_ngram_size", "max_draft_factor", "corpus"}
    answer.steps.append(["pip", "install", "arctic-inference"])
    more = {} if options.corpus else {"suffix_decoding_max_cached_requests": 0}
    if options.corpus:
        answer.notes.append(
            f"speculation.corpus: {TITLE} reads no file; it keeps the outputs of its own requests"
        )
    _speculate(
        recipe,
        answer,
        method="suffix",
        suffix_decoding_max_tree_depth=options.max_matching_ngram_size + options.max_draft_len,
        # Its own default is 1; this many is no limit for a match of one token and more.
        suffix_decoding_max_spec_factor=options.max_draft_factor or float(options.max_draft_len),
        **more,
    )


def _draft_model(recipe: Recipe, answer: Answer, **more: Any) -> None:
    where, draft = bare_draft(recipe, answer, TITLE)
    model, revision = hugging_face(where, draft, answer, TITLE)
    config: dict[str, Any] = {"method": "draft_model", "model": model}
    if revision:
        config["revision"] = revision
    if isinstance(draft, ModelSpec):
        tp, target_tp = draft.parallel.tp, recipe.target.parallel.tp
        if tp in (1, target_tp):
            config["draft_tensor_parallel_size"] = tp
        else:
            answer.notes.append(
                f"{where}.parallel.tp: {tp}; {TITLE} runs a draft on 1 GPU or on the target's "
                f"{target_tp}: {target_tp} taken"
            )
            config["draft_tensor_parallel_size"] = target_tp
    if word := quantized(where, draft, QUANTIZATION, answer, TITLE):
        config["quantization"] = word
    _speculate(recipe, answer, **config, **more)


def _pard(recipe: Recipe, answer: Answer) -> None:
    _draft_model(recipe, answer, parallel_drafting=True)


def _head(method: str) -> Method:
    def say(recipe: Recipe, answer: Answer) -> None:
        where, draft = bare_draft(recipe, answer, TITLE)
        model, revision = hugging_face(where, draft, answer, TITLE)
        config: dict[str, Any] = {"method": method, "model": model}
        if revision:
            config["revision"] = revision
        _speculate(recipe, answer, **config)

    return say


def _mtp(recipe: Recipe, answer: Answer) -> None:
    if draft_of(recipe.speculation):
        _head("mtp")(recipe, answer)
    else:
        _speculate(recipe, answer, method="mtp")


def _medusa(recipe: Recipe, answer: Answer) -> None:
    answer.notes.append(
        f"speculation.heads: {TITLE} reads Medusa heads in a layout of its own, not in that of "
        "the Medusa repository"
    )
    _head("medusa")(recipe, answer)


def _none(recipe: Recipe, answer: Answer) -> None:
    """Plain decoding takes no option."""


def _speculate(recipe: Recipe, answer: Answer, **config: Any) -> None:
    """vLLM drafts one chain: what counts is how deep the recipe's draft goes."""
    options = recipe.speculation
    depth = DRAFTERS[options.drafter].path_len(options)
    if depth != options.max_draft_len:
        answer.notes.append(
            f"speculation.max_draft_len: {options.max_draft_len} tree nodes become a chain of "
            f"{depth}, the depth of the tree; {TITLE} has no trees"
        )
    answer.said |= {"medusa_choices", "eagle_choices", "num_medusa_heads", "num_eagle_layers"}
    answer.options[CONFIG] = {**config, "num_speculative_tokens": depth}
    if recipe.target.parallel.pp > 1:
        answer.notes.append(
            f"target.parallel.pp: {TITLE} up to 0.15 refuses speculation with pipeline parallelism"
        )


def _schedule(recipe: Recipe, answer: Answer) -> None:
    config = answer.options[CONFIG]
    assert isinstance(config, dict)
    steps = [(e.batch, e.draft_len) for e in recipe.speculation.draft_length.schedule]
    ranges = batch_ranges(steps, recipe.engine.max_batch_size)
    config["num_speculative_tokens_per_batch_size"] = list(map(list, ranges))
    answer.notes.append(
        f"speculation.draft_length.schedule: {TITLE} documents draft lengths by batch size for "
        "EAGLE, EAGLE-3 and DFlash; others may not have them"
    )


METHODS: Mapping[str, Method] = {
    "none": _none,
    "ngram": _ngram,
    "suffix": _suffix,
    "draft_target": _draft_model,
    "eagle": _head("eagle"),
    "eagle3": _head("eagle3"),
    "medusa": _medusa,
    "mtp": _mtp,
    "pard": _pard,
    "dflash": _head("dflash"),
    "dspark": _head("dspark"),
}
POLICIES: Mapping[str, Method] = {"schedule": _schedule}


class Vllm(Peer):
    """The OpenAI-compatible server of vLLM."""

    name = "vllm"
    title = TITLE
    documented_in = "vLLM's speculative decoding guide and serve arguments (2026)"
    options = OPTIONS
    methods = METHODS
    policies = POLICIES

    @classmethod
    def describe(cls, recipe: Recipe, answer: Answer) -> None:
        target, engine, options = recipe.target, recipe.engine, answer.options
        model, revision = hugging_face("target", target, answer, TITLE)
        answer.program += ["vllm", "serve", model]
        if revision:
            options["--revision"] = revision
        options["--dtype"] = target.dtype
        if word := quantized("target", target, QUANTIZATION, answer, TITLE):
            options["--quantization"] = word
        options["--tensor-parallel-size"] = target.parallel.tp
        if target.parallel.pp > 1:
            options["--pipeline-parallel-size"] = target.parallel.pp
        options["--max-model-len"] = engine.max_seq_len
        options["--max-num-seqs"] = engine.max_batch_size
        if engine.max_num_tokens:
            options["--max-num-batched-tokens"] = engine.max_num_tokens
        options["--host"] = recipe.serve.host
        options["--port"] = recipe.serve.http_port
        answer.notes.append(
            f"engine.max_input_len: {TITLE} limits prompt and output together "
            f"(--max-model-len {engine.max_seq_len}), not the prompt alone"
        )
