# ruff: noqa: E501 - upstream's messages are as long as they are
"""Messages as upstream prints them, and what is made of them."""

import pytest

from toolkit.engine.trtllm.failures import FAILURES, explain

MESSAGES = {
    "trtllm-build: error: unrecognized arguments: --auto_parallel 2": "does not know --auto_parallel 2",
    "trtllm-build: error: argument --gemm_plugin: invalid choice: 'nvfp4' (choose from ...)": "no such value for --gemm_plugin",
    "RuntimeError: Gather context logits is not support with draft len > 0. ...": "context logits",
    "RuntimeError: Required but not provided tensors:{'lm_head.weight'}": "lacks tensors: {'lm_head.weight'}",
    "RuntimeError: The value updated is not the same shape as the original. Updated: (252, 64), original: (250, 64)": "another shape",
    "TypeError: Mapping.__init__() got an unexpected keyword argument 'moe_cluster_size'": "has the key moe_cluster_size",
    "AssertionError: Unsupported model architecture: Qwen3ForCausalLM": "cannot build Qwen3ForCausalLM",
    "AttributeError: 'LLaMAConfig' object has no attribute 'seq_length'": "need seq_length",
    "KeyError: 'fc.bias'": "without fc.bias",
    "[TensorRT-LLM][ERROR] No available XQA kernels are found for speculative decoding mode.": "no attention kernel",
    "RuntimeError: Paged Context FMHA doesn't work with int8 kv cache currently.": "excludes paged context FMHA",
    "RuntimeError: CUDA driver version is insufficient for CUDA runtime version": "no GPU here",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "ran out of memory",
    "OSError: [Errno 28] No space left on device": "disk is full",
    "ImportError: libnvinfer.so.10: cannot open shared object file: No such file or directory": "library libnvinfer.so.10",
    "RuntimeError: Both num_medusa_heads and max_draft_len have to be provided for Medusa model": "without heads",
    "Assertion failed: max_draft_len has to be larger than 0 for decoding with Lookahead": "draft tokens",
    "Assertion failed: KV cache block reuse must be enabled for speculative decoding target model": "KV block reuse",
    "TrtGptModelInflightBatching requires GPT attention plugin with packed input and paged KV cache": "in-flight",
    "RuntimeError: Incompatible buffer sizes": "different widths",
    "The engine plan file is generated on an incompatible device, expecting compute 8.0 got compute 9.0": "another GPU architecture",
}  # fmt: skip


@pytest.mark.parametrize(
    ("message", "cause"), MESSAGES.items(), ids=[str(i) for i in range(len(MESSAGES))]
)
def test_known_messages_have_a_cause_and_a_way_out(message, cause):
    found = explain(["[TRT-LLM] [I] Start", message, "Traceback"])
    assert cause in found
    assert "; " in found


def test_what_is_not_known_is_not_explained():
    assert explain(["[TRT-LLM] [I] Total time of building all engines: 00:05:00"]) is None


def test_a_line_of_megabytes_takes_no_time():
    assert explain(["x" * 10_000_000]) is None


def test_every_cause_uses_only_what_its_pattern_finds():
    for failure in FAILURES:
        words = dict.fromkeys(failure.pattern.groupindex, "x")
        assert failure.cause.format(**words)
