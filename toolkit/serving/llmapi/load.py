"""Load `tensorrt_llm.LLM` in Triton's process for one instance of the model."""

from __future__ import annotations

import os
import re
from typing import Any

from toolkit.errors import InputError
from toolkit.optional import require
from toolkit.recipe.release import release


def take_gpus(groups: str, count: int, instance: str) -> int | None:
    """Show this process the GPUs of its instance alone; how many they are, None for all.

    `groups` is like `0,1;2,3`, `instance` like `tensorrt_llm_0_1`, whose last number counts. Must
    come before tensorrt_llm is imported: CUDA looks at the variable once.
    """
    if not groups:
        if count > 1:
            raise InputError(f"gpu_device_ids is missing: {count} instances need GPUs of their own")
        return None
    lists = groups.split(";")
    match = re.search(r"_(\d+)$", instance)
    number = int(match[1]) if match and count > 1 else 0
    if len(lists) != count:
        raise InputError(f"gpu_device_ids {groups!r}: {len(lists)} list(s), {count} instance(s)")
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["TRTLLM_VISIBLE_DEVICES"] = lists[number]
    return len(lists[number].split(","))


def load_llm(args: dict[str, Any], gpus: int | None, wanted: str) -> tuple[Any, Any]:
    """(LLM, loaded; the class SamplingParams). InputError when this release refuses the arguments.

    `wanted` is the release that the arguments were written for.
    """
    api = require("tensorrt_llm", extra="tensorrt", why="the llmapi model")
    if gpus is not None:
        args = {**args, "gpus_per_node": gpus}
    here = str(getattr(api, "__version__", ""))
    try:
        return api.LLM(**_fitted(api, args)), api.SamplingParams
    except (TypeError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        hint = ""
        if wanted and release(here) != release(wanted):
            hint = f" (model.yaml was written for {wanted}: set tensorrt_llm in the recipe)"
        lines = "; ".join(line.strip() for line in str(error).strip().splitlines())
        raise InputError(f"TensorRT-LLM {here} refuses model.yaml{hint}: {lines}") from None


def _fitted(api: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Sections as the objects that LLM takes; upstream's own model goes through this function."""
    utils = require(f"{api.__name__}.llmapi.llm_utils", extra="tensorrt", why="the llmapi model")
    fitted: dict[str, Any] = utils.update_llm_args_with_extra_dict({}, args)
    return fitted
