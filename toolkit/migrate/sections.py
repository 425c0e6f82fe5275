"""What becomes of everything that is not the drafter's own: release, flags, sizes, draft length."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolkit.checkpoint.quantization import READY
from toolkit.engine.llmapi.profiles import profile
from toolkit.engine.llmapi.rules import DEFAULT_MAX_NUM_TOKENS
from toolkit.migrate.fields import Data
from toolkit.recipe.schema import TensorRT
from toolkit.recipe.serving import Serve, TritonTensorRT
from toolkit.registry import DRAFTERS

KERNELS = "kernels are chosen when the model is loaded"
ALWAYS = "always so on this backend"
LOGITS = "each request asks for logits itself"
NOTHING_BUILT = "a build flag, and nothing is built here"
# A flag of trtllm-build -> what takes its place; the rest had to do with building.
FLAGS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "gemm_plugin", "gpt_attention_plugin", "nccl_plugin", "moe_plugin", "lora_plugin",
            "gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin",
            "low_latency_gemm_swiglu_plugin", "gemm_allreduce_plugin", "use_fused_mlp",
            "reduce_fusion", "user_buffer", "fuse_fp4_quant", "norm_quant_fusion",
        ),
        KERNELS,
    ),
    **dict.fromkeys(
        (
            "context_fmha", "use_paged_context_fmha", "kv_cache_type", "paged_state",
            "remove_input_padding",
        ),
        ALWAYS,
    ),
    **dict.fromkeys(
        ("gather_context_logits", "gather_generation_logits", "gather_all_token_logits"), LOGITS
    ),
    "use_fp8_context_fmha": "follows the quantisation of the checkpoint",
    "multiple_profiles": "there are no profiles; CUDA graphs are recorded by batch size",
    "opt_num_tokens": "there are no profiles; CUDA graphs are recorded by batch size",
    "tokens_per_block": "32 here; pytorch.llm_args.kv_cache_config, written whole, changes it",
}  # fmt: skip


def backend(data: Data, goal: str) -> None:
    """Who runs it, and by whose rules."""
    was, number = data.get("backend"), data.get("tensorrt_llm")
    data.values |= {"backend": "pytorch", "tensorrt_llm": goal}
    if was != "pytorch":
        data.say(
            "backend",
            "changed",
            f"{was} -> pytorch: the checkpoint is loaded as it is, unconverted",
        )
    if number != goal:
        data.say("tensorrt_llm", "changed", f"{number} -> {goal}")


def tensorrt(data: Data, goal: str) -> None:
    """Flags and times of builds go; the GPU stays, for it is what memory is checked against."""
    section = data.values.pop("tensorrt", {})
    data.values["tensorrt"] = {"gpu": section.get("gpu")}
    for name, value in (section.get("flags") or {}).items():
        data.say(f"tensorrt.flags.{name}", "dropped", f"{value}: {FLAGS.get(name, NOTHING_BUILT)}")
    defaults = {name: field.default for name, field in TensorRT.model_fields.items()}
    if section.get("build_timeout_s", defaults["build_timeout_s"]) != defaults["build_timeout_s"]:
        data.say("tensorrt.build_timeout_s", "dropped", "nothing is built here")
    fraction = section.get("kv_cache_fraction", defaults["kv_cache_fraction"])
    if data.get("backend") == "tensorrt" and fraction != defaults["kv_cache_fraction"]:
        data.put("pytorch.kv_cache_fraction", fraction)
        data.say("tensorrt.kv_cache_fraction", "renamed", f"pytorch.kv_cache_fraction {fraction}")


def quantization(data: Data, goal: str) -> None:
    """What a checkpoint says of itself need not be said again."""
    for where in ("target.quantization", "speculation.draft.quantization"):
        if (value := data.get(where)) in READY:
            data.reset(where)
            data.say(
                where, "dropped", f"{value}: read from the checkpoint's own hf_quant_config.json"
            )


def serve(data: Data, goal: str) -> None:
    """The server speculates by itself: there is no draft model for a BLS loop to call."""
    if data.get("serve.layout") == "bls":
        layout: str = Serve.model_fields["layout"].default
        data.put("serve.layout", layout)
        data.say("serve.layout", "changed", f"bls -> {layout}: the server itself drafts")
    said = data.get("serve.tensorrt")
    data.reset("serve.tensorrt")
    if said and said != TritonTensorRT().model_dump(mode="json"):
        data.say("serve.tensorrt", "dropped", "how Triton's tensorrtllm backend runs engines")


def schedule(data: Data, goal: str) -> None:
    """Draft lengths by batch size, as far as the release has them."""
    steps = data.get("speculation.draft_length.schedule")
    if data.get("speculation.draft_length.policy") != "schedule" or not steps:
        return
    if steps[0]["batch"] > 1:
        # Below the first batch spectool drafts what the first entry says.
        steps[0] = {**steps[0], "batch": 1}
        data.say(
            "speculation.draft_length.schedule", "changed", "its first entry starts at batch 1"
        )
    _longest_first(data, steps)
    rules = profile(goal)
    if rules.schedule_keys is None:
        _as_max_concurrency(data, steps, goal)
    elif rules.schedule_keys == "at most" and (limit := data.get("pytorch.max_concurrency")):
        ended = [step for step in steps if step["batch"] <= limit]
        data.put(
            "speculation.draft_length.schedule", [*ended, {"batch": limit + 1, "draft_len": 0}]
        )
        data.reset("pytorch.max_concurrency")
        data.say(
            "pytorch.max_concurrency", "renamed",
            f"speculation.draft_length.schedule, which ends with 0 from batch {limit + 1} on",
        )  # fmt: skip


def _longest_first(data: Data, steps: list[dict[str, int]]) -> None:
    """The releases want max_draft_len at batch 1."""
    first, limit = steps[0]["draft_len"], data.get("speculation.max_draft_len")
    if first == max(step["draft_len"] for step in steps) and 0 < first < (limit or 0):
        data.put("speculation.max_draft_len", first)
        data.say(
            "speculation.max_draft_len", "changed",
            f"{limit} -> {first}: no entry of the schedule drafts more",
        )  # fmt: skip


def _as_max_concurrency(data: Data, steps: list[dict[str, int]], goal: str) -> None:
    """`K, then 0 from batch B on` is what max_concurrency says."""
    method = profile(goal).methods.get(data.get("speculation.drafter"))
    there = method is not None and "max_concurrency" in method.keys
    if not there or len(steps) != 2 or steps[1]["draft_len"]:
        return  # the release's own rules say what is missing
    limit = min(steps[1]["batch"] - 1, data.get("pytorch.max_concurrency") or steps[1]["batch"])
    data.reset("speculation.draft_length")
    data.put("pytorch.max_concurrency", limit)
    data.say(
        "speculation.draft_length", "renamed",
        f"pytorch.max_concurrency {limit}: no speculation above this batch size",
    )  # fmt: skip


def room(data: Data, goal: str) -> None:
    """Engines raise max_num_tokens to what a verify step needs; the LLM API must be told."""
    values = data.values["speculation"]
    drafter = DRAFTERS[values["drafter"]]
    options = drafter.Options.model_validate(values)
    needed = data.get("engine.max_batch_size") * drafter.tokens_per_step(options)
    given = data.get("engine.max_num_tokens")
    if needed > (given or DEFAULT_MAX_NUM_TOKENS):
        data.put("engine.max_num_tokens", needed)
        data.say(
            "engine.max_num_tokens", "changed",
            f"{given or f'null ({DEFAULT_MAX_NUM_TOKENS})'} -> {needed}: engines raise it to what "
            "a verify step of a full batch needs, this backend must be told",
        )  # fmt: skip


Step = Callable[[Data, str], None]
STEPS: tuple[Step, ...] = (tensorrt, backend, quantization, serve, schedule, room)
