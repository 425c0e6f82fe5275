"""What TensorRT-LLM prints when it fails -> what it means and what to do.

Build messages first, then those of engines that load or run badly; one line of a log may match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """A known message, its cause and the way out."""

    pattern: re.Pattern[str]
    cause: str
    fix: str


def _known(pattern: str, cause: str, fix: str) -> Failure:
    return Failure(re.compile(pattern, re.IGNORECASE), cause, fix)


FAILURES = (
    _known(
        r"unrecognized arguments?: (?P<what>.+)",
        "this trtllm-build does not know {what}",
        "set tensorrt_llm to the installed release; `spectool doctor` shows it",
    ),
    _known(
        r"argument (?P<what>--\w+).*invalid choice",
        "this trtllm-build has no such value for {what}",
        "set tensorrt_llm to the installed release, or remove the flag from tensorrt.flags",
    ),
    _known(
        r"gather context logits is not support",
        "context logits cannot be gathered with draft tokens",
        "remove gather_context_logits and gather_all_token_logits from tensorrt.flags",
    ),
    _known(
        r"required but not provided tensors:?\s*(?P<what>\{.{0,200})",
        "the checkpoint lacks tensors: {what}",
        "convert the model again; was the checkpoint made for another release?",
    ),
    _known(
        r"value updated is not the same shape as the original",
        "a tensor of the checkpoint has another shape than its config.json says",
        "convert again with the parallel sizes of the recipe",
    ),
    _known(
        r"(mapping|quantconfig).*__init__\(\) got an unexpected keyword argument '?(?P<what>\w+)",
        "config.json has the key {what}, which this release does not know",
        "convert the model again with spectool, which writes only keys that all releases read",
    ),
    _known(
        r"unsupported model architecture:? ?(?P<what>\w*)",
        "this release cannot build {what}",
        "use a newer tensorrt_llm, or backend: pytorch",
    ),
    _known(
        r"hasattr.{0,40}num_eagle_layers|num_eagle_layers.{0,40}assert",
        "mode eagle was asked for a checkpoint without an EAGLE head",
        "convert the target together with its head (speculation.heads)",
    ),
    _known(
        r"has no attribute '?seq_length",
        "Qwen 2 checkpoints need seq_length in config.json",
        "convert the model again with spectool, which writes it",
    ),
    _known(
        r"keyerror: '?(?P<what>[\w.]*(fc\.bias|lm_head\.weight))",
        "the converter met a checkpoint without {what}",
        "convert with spectool, which writes zeros for a missing fc.bias and unties lm_head",
    ),
    _known(
        r"no available xqa kernels",
        "this GPU has no attention kernel for this head size with speculative decoding",
        "use drafter: none for this model and GPU, or backend: pytorch",
    ),
    _known(
        r"paged context fmha.{0,80}(int8|fp8) kv|(int8|fp8) kv.{0,80}paged context fmha",
        "this quantised KV cache excludes paged context FMHA",
        "use fp8 weights with an fp8 KV cache, or a plain KV cache",
    ),
    _known(
        r"cuda driver version is insufficient|no cuda-capable device|cuda_error_no_device",
        "there is no GPU here that this CUDA can use",
        "run where `nvidia-smi` shows the GPU, with a driver for this CUDA version",
    ),
    _known(
        r"no kernel image is available|unsupported sm version",
        "this TensorRT-LLM has no kernels for this GPU architecture",
        "use a release that supports the GPU",
    ),
    _known(
        r"cuda out of memory|outofmemory|out of memory|cudaerrormemoryallocation|cuda failure 2\b",
        "the GPU ran out of memory",
        "free the GPU, or lower engine.max_batch_size, engine.max_num_tokens or "
        "engine.max_seq_len, or raise target.parallel.tp",
    ),
    _known(
        r"no space left on device",
        "the disk is full",
        "free some (spectool store prune) or choose another disk with --store DIR",
    ),
    _known(
        r"(importerror|oserror): .{0,80}(?P<what>lib[\w.+-]+\.so[\w.]*)",
        "the library {what} is missing or does not fit",
        "reinstall tensorrt_llm with its dependencies, or use NVIDIA's container",
    ),
    _known(
        r"num_medusa_heads and max_draft_len have to be provided",
        "the engine was built in mode medusa from a checkpoint without heads",
        "build it again from a checkpoint that was converted with its heads",
    ),
    _known(
        r"max_draft_len has to be larger than 0|draft tokens? .{0,40}exceeds? .{0,40}maximum",
        "the engine was built without room for that many draft tokens",
        "build it again with speculation.max_draft_len at least as large",
    ),
    _known(
        r"block reuse must be enabled|reuse.{0,60}paged context",
        "draft tokens from outside need KV block reuse and paged context FMHA",
        "build both engines with spectool, and keep enable_kv_cache_reuse on",
    ),
    _known(
        r"packed input and paged kv cache",
        "the engine was not built for in-flight batching",
        "build it again with kv_cache_type paged",
    ),
    _known(
        r"incompatible buffer sizes",
        "the logits of draft and target have different widths",
        "set speculation.use_draft_logits: false, or take a draft with the target's vocab_size",
    ),
    _known(
        r"incompatible device|not compatible with this version of tensorrt|"
        r"serialization assertion|magic tag does not match|engine plan file is",
        "the engine was built for another GPU architecture or TensorRT version",
        "build it here: spectool build RECIPE",
    ),
    _known(
        r"maxpathlen than the engine was built|choices.{0,60}same depth",
        "the tree is deeper than the engine's heads or layers",
        "use a tree whose depth fits",
    ),
)  # fmt: skip
KILLED = Failure(
    re.compile("$^"),
    "the system ended it, most likely because host memory ran out",
    "build on a machine with more memory, or with fewer ranks at once",
)


def explain(lines: Iterable[str], exit_code: int | None = None) -> str | None:
    """`cause; fix` of the first known message; None when nothing is known."""
    for line in lines:
        for failure in FAILURES:
            if found := failure.pattern.search(line[:10_000]):
                words = {key: (value or "").strip() for key, value in found.groupdict().items()}
                return f"{failure.cause.format(**words)}; {failure.fix}"
    if exit_code in (137, -9):
        return f"{KILLED.cause}; {KILLED.fix}"
    return None
