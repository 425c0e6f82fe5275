"""What `quantization` in a recipe means: who quantises, and what config.json says.

w8a16, w4a16  trtllm-build does, or the embedded engine, from floating point weights
fp8           NVIDIA ModelOpt did: the checkpoint has hf_quant_config.json
the rest      ModelOpt writes TensorRT-LLM checkpoints itself, on a GPU machine: see ready.py
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.checkpoint.fp8 import QUANT_CONFIG, quantization_of
from toolkit.recipe.schema import ModelSpec

WEIGHT_ONLY = {"w8a16": "W8A16", "w4a16": "W4A16"}
READY = {"fp8": "FP8"}  # as quant_algo of a ModelOpt checkpoint
# Formats of ModelOpt's quantize.py, whose output trtllm-build takes as it is.
QFORMATS = {"awq": "int4_awq", "nvfp4": "nvfp4", "smoothquant": "int8_sq"}
_OTHER = {"gptq": "weights that were quantised with GPTQ, packed by TensorRT-LLM's own converter"}
_KV = (None, "FP8")


def quantization_problems(config: Mapping[str, Any], spec: ModelSpec) -> Iterator[str]:
    """Where the recipe and the weights disagree, or who else must quantise."""
    wanted = (spec.quantization or "").lower()
    ready = quantization_of(config)
    algorithm = ready.get("quant_algo")
    named = [name for name, algo in READY.items() if algo == algorithm]
    if ready and algorithm is not None and wanted not in named:
        way_out = f"set quantization: {named[0]}" if named else "take the original weights"
        yield (
            f"{QUANT_CONFIG}: the weights are {algorithm}, the recipe's quantization is "
            f"{spec.quantization or 'null'}; {way_out}"
        )
    elif config.get("quantization_config") and not named:
        yield (
            "config.json: quantization_config says that the weights are quantised already; use "
            "the model's original float16 or bfloat16 weights"
        )
    elif wanted in READY and not named:
        yield (
            f"quantization {spec.quantization!r} needs weights that NVIDIA ModelOpt quantised "
            f"(with {QUANT_CONFIG}); make them on a GPU machine: {modelopt_command(spec)}"
        )
    elif wanted and wanted not in (*WEIGHT_ONLY, *READY):
        needs = modelopt_command(spec) or _OTHER.get(wanted, "something that is not known here")
        yield (
            f"quantization {spec.quantization!r} needs {needs}; without it: null, "
            f"{', '.join((*WEIGHT_ONLY, *READY))}"
        )
    if named and ready.get("kv_cache_quant_algo") not in _KV:
        yield f"{QUANT_CONFIG}: kv_cache_quant_algo {ready['kv_cache_quant_algo']} is not converted"


def quantization_section(config: Mapping[str, Any], spec: ModelSpec) -> dict[str, Any]:
    """`quantization` of config.json; keys that every release accepts."""
    wanted = (spec.quantization or "").lower()
    if wanted not in READY:
        return {"quant_algo": WEIGHT_ONLY.get(wanted), "kv_cache_quant_algo": None}
    ready = quantization_of(config)
    return {
        "quant_algo": READY[wanted],
        "kv_cache_quant_algo": ready.get("kv_cache_quant_algo"),
        # Left out, a loader would look for scales of lm_head.
        "exclude_modules": list(ready.get("exclude_modules") or ["lm_head"]),
    }


def needs_elsewhere(spec: ModelSpec) -> str | None:
    """Who must quantise before anything can be built here; None where conversion will do."""
    return modelopt_command(spec) if (spec.quantization or "").lower() in QFORMATS else None


def modelopt_command(spec: ModelSpec) -> str | None:
    """What to run on a GPU machine, from NVIDIA ModelOpt's (fp8) or TensorRT-LLM's examples."""
    wanted = (spec.quantization or "").lower()
    model = shlex.quote(spec.checkpoint)
    if wanted in READY:
        return (
            f"python examples/llm_ptq/hf_ptq.py --pyt_ckpt_path {model} --qformat {wanted} "
            f"--export_path DIR; then, in the recipe, checkpoint: DIR"
        )
    if wanted in QFORMATS:
        ranks = f"--tp_size {spec.parallel.tp} --pp_size {spec.parallel.pp}"
        return (
            "NVIDIA ModelOpt on a GPU machine: python examples/quantization/quantize.py "
            f"--model_dir {model} --dtype {spec.dtype} --qformat {QFORMATS[wanted]} {ranks} "
            "--output_dir DIR; then, in the recipe, checkpoint: DIR, tokenizer: "
            f"{spec.tokenizer or spec.checkpoint}, quantization: {wanted}"
        )
    return None
