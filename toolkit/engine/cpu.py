"""Build an engine directory for backend `cpu` from a TensorRT-LLM checkpoint.

config.json   {version, pretrained_config, build_config} in TensorRT-LLM's shape, plus `cpu`
model.xml     the decoder graph
model.bin     its weights, in the checkpoint's dtype or int8; mapped, not read, when loaded
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import toolkit
from toolkit.checkpoint.read import Checkpoint
from toolkit.engine.directory import (
    BLOCK_SIZE,
    CONFIG,
    ENGINE_VERSION,
    GRAPH,
    SEAL,
    WEIGHTS,
    config_seal,
)
from toolkit.engine.graph import DecoderGraph
from toolkit.engine.settings import DecoderSettings, decoder_settings
from toolkit.engine.weights import CheckpointTensors, Weights
from toolkit.errors import InputError
from toolkit.recipe.schema import EngineLimits, Recipe
from toolkit.registry import DRAFTERS

DEFAULT_MAX_NUM_TOKENS = 8192


Captured = Callable[[int], tuple[int, ...]]  # from a model's layers to those that it captures


def final_states(layers: int) -> tuple[int, ...]:
    """What is captured unless a drafter asks for more: the states after the last norm."""
    return (layers,)


def captured_for(recipe: Recipe, role: str) -> Captured:
    """The states of a model that the recipe's drafter reads."""
    options = recipe.speculation
    if role != "target":
        return final_states
    return partial(DRAFTERS[options.drafter].captured_layers, options)


def build_cpu_engine(
    checkpoint_dir: Path, out: Path, limits: EngineLimits, captured: Captured = final_states
) -> None:
    """Write the engine of one checkpoint into `out`, an existing directory."""
    build_engine_of(Checkpoint(checkpoint_dir), out, limits, captured)


def build_engine_of(
    checkpoint: CheckpointTensors,
    out: Path,
    limits: EngineLimits,
    captured: Captured = final_states,
) -> None:
    """The same of a checkpoint that is open, or of a part of one."""
    settings = decoder_settings(checkpoint.config, str(checkpoint.directory))
    check_limits(settings, limits)
    weights = Weights(checkpoint, int8=settings.int8_weights)
    layers = captured(settings.num_layers)
    model = DecoderGraph(settings, weights, limits.max_seq_len, layers).model()
    write_engine(model, out, engine_config(checkpoint.config, limits, layers))


def write_engine(
    model: Any, out: Path, config: dict[str, Any], files: tuple[str, ...] = ()
) -> None:
    """The graph, its weights, and the config.json that belongs to them."""
    from openvino import save_model

    model.set_rt_info(config_seal(config), list(SEAL))
    save_model(model, out / GRAPH, compress_to_fp16=False)
    config["cpu"] |= {
        "engine_version": ENGINE_VERSION,
        "files": {name: (out / name).stat().st_size for name in (GRAPH, WEIGHTS, *files)},
    }
    (out / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def engine_spec(
    checkpoint_digest: str,
    limits: EngineLimits,
    captured: Captured = final_states,
    machine: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that changes an engine's bytes: what its digest is taken over."""
    return {
        "engine": "cpu",
        **(machine or machine_spec()),
        "checkpoint": checkpoint_digest,
        "limits": limits.model_dump(mode="json"),
        # The checkpoint tells how many layers there are; of any number the rule is the same.
        "captured_of_64_layers": list(captured(64)),
    }


def machine_spec() -> dict[str, Any]:
    """The part of it that is this installation's."""
    return {"engine_version": ENGINE_VERSION, "openvino": openvino_version()}


def openvino_version() -> str | None:
    """The installed release, without importing it; None when it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("openvino")
    except PackageNotFoundError:
        return None


def engine_config(
    pretrained: Mapping[str, Any], limits: EngineLimits, captured: tuple[int, ...]
) -> dict[str, Any]:
    """config.json in the shape that trtllm-build writes."""
    longest_pass = limits.max_seq_len * limits.max_batch_size
    return {
        "version": toolkit.__version__,
        "pretrained_config": dict(pretrained),
        "cpu": {"captured_layers": list(captured)},
        "build_config": {
            "max_input_len": limits.max_input_len,
            "max_seq_len": limits.max_seq_len,
            "max_batch_size": limits.max_batch_size,
            "max_beam_width": 1,
            "max_num_tokens": min(limits.max_num_tokens or DEFAULT_MAX_NUM_TOKENS, longest_pass),
            "kv_cache_type": "PAGED",
            "max_draft_len": 0,
            "speculative_decoding_mode": 1,
            "plugin_config": {
                "dtype": pretrained["dtype"],
                "paged_kv_cache": True,
                "remove_input_padding": True,
                "tokens_per_block": BLOCK_SIZE,
            },
        },
    }


def check_limits(settings: DecoderSettings, limits: EngineLimits) -> None:
    """Refuse a length that the model was not made for."""
    for name, longest in (
        ("max_position_embeddings", settings.max_position_embeddings),
        ("sliding_window", settings.sliding_window),
    ):
        if longest is not None and limits.max_seq_len > longest:
            raise InputError(
                f"engine.max_seq_len: {limits.max_seq_len} is above the model's {name} ({longest});"
                f" set engine.max_seq_len to {longest} or less"
            )
