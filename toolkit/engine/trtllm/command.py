"""The exact trtllm-build command line of each engine of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from toolkit.engine.trtllm.flags import FlagValue
from toolkit.recipe.release import Release, release
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.speculation.tensorrt import EXTERNAL, MODE

PROGRAM = "trtllm-build"
# Flags that a recipe says elsewhere, or that spectool needs for itself.
RESERVED = {
    "checkpoint_dir": "spectool sets it to the converted checkpoint",
    "output_dir": "spectool sets it to a place in the store",
    "model_config": "spectool builds from the converted checkpoint",
    "build_config": "it would replace what the recipe says; write flags one by one",
    "model_cls_file": "spectool runs no code that comes with a model",
    "model_cls_name": "spectool runs no code that comes with a model",
    "max_batch_size": "set engine.max_batch_size",
    "max_input_len": "set engine.max_input_len",
    "max_seq_len": "set engine.max_seq_len",
    "max_num_tokens": "set engine.max_num_tokens",
    "speculative_decoding_mode": "it follows from speculation.drafter",
    "max_draft_len": "set speculation.max_draft_len",
    "workers": "it follows from target.parallel",
    "input_timing_cache": "spectool keeps the timing cache in the store",
    "output_timing_cache": "spectool keeps the timing cache in the store",
    "dry_run": "it builds nothing; use `spectool plan`",
}
# Their weights are scaled inside the matrix product, which the plugin does not do.
_WITHOUT_GEMM_PLUGIN = ("fp8", "nvfp4")


def engine_flags(recipe: Recipe, role: str) -> dict[str, FlagValue]:
    """Every flag that changes the engine of `role`, without paths: part of its digest.

    What matters is said even where it is the default, since defaults change between releases.
    """
    limits, model = recipe.engine, recipe.models()[role]
    flags: dict[str, FlagValue] = {
        "max_batch_size": limits.max_batch_size,
        "max_input_len": limits.max_input_len,
        "max_seq_len": limits.max_seq_len,
        **({"max_num_tokens": limits.max_num_tokens} if limits.max_num_tokens else {}),
        "max_beam_width": 1,
        "kv_cache_type": "paged",
    }
    if (model.quantization or "").lower() not in _WITHOUT_GEMM_PLUGIN:
        flags["gemm_plugin"] = "auto"
    return {**flags, **drafter_flags(recipe, role), **allowed(recipe.tensorrt.flags)}


def drafter_flags(recipe: Recipe, role: str) -> Mapping[str, FlagValue]:
    """What the drafter needs of the engine of `role`."""
    options = recipe.speculation
    found: Mapping[str, FlagValue] = DRAFTERS[options.drafter].engine_flags(
        options, role, release_of(recipe)
    )
    return found


def takes_drafts(recipe: Recipe) -> bool:
    """Whether drafts come to the target's engine from outside, of any length up to the built one.

    Such an engine decodes plainly, too.
    """
    return drafter_flags(recipe, "target").get(MODE) == EXTERNAL


def allowed(flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """The recipe's own flags without those that it may not set; rules.py says so."""
    return {name: value for name, value in flags.items() if name not in RESERVED}


def release_of(recipe: Recipe) -> Release:
    """The recipe's release; rules.py has refused text that is none."""
    return release(recipe.tensorrt_llm) or (0, 0)


def build_command(
    recipe: Recipe,
    role: str,
    *,
    checkpoint_dir: PurePath | str,
    output_dir: PurePath | str,
    program: PurePath | str = PROGRAM,
    more: Mapping[str, FlagValue] | None = None,
) -> tuple[str, ...]:
    """The arguments of one build; `more` does not change the engine (timing caches)."""
    parallel = recipe.models()[role].parallel
    ranks = parallel.tp * parallel.pp
    flags: dict[str, FlagValue] = {
        "checkpoint_dir": str(checkpoint_dir),
        "output_dir": str(output_dir),
        **engine_flags(recipe, role),
        **({"workers": ranks} if ranks > 1 else {}),
        **(more or {}),
    }
    return (str(program), *(word for name, value in flags.items() for word in _words(name, value)))


def _words(name: str, value: FlagValue) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (f"--{name}",) if value else ()
    return f"--{name}", str(value)
