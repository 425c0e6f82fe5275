"""config.json of a TensorRT-LLM checkpoint, made from Hugging Face's after checking its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from toolkit.checkpoint.families.family import Family
from toolkit.checkpoint.quantization import quantization_problems, quantization_section
from toolkit.errors import CheckpointError, UnknownNameError
from toolkit.recipe.schema import ModelSpec
from toolkit.registry import FAMILIES

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
)
_LIMIT = 2**31 - 1
_MAX_LAYERS = 10_000


def checkpoint_config(config: Mapping[str, Any], spec: ModelSpec) -> dict[str, Any]:
    """What `convert` would write as config.json; every problem is reported at once."""
    family = family_of(config, spec)
    values = {**family.defaults, **{k: v for k, v in config.items() if v is not None}}
    if family.defaults.get("head_dim") is None and "head_dim" not in values:
        values["head_dim"] = _head_dim(values)
    values.setdefault("num_key_value_heads", values.get("num_attention_heads"))
    problems = _wrong_sizes(values) + _wrong_values(config, values, family, spec)
    if not problems:
        problems = _does_not_split(values, spec) + _wrong_layers(values, spec)
    if problems:
        raise CheckpointError(spec.checkpoint, problems)
    return _assemble(config, values, family, spec)


def family_of(config: Mapping[str, Any], spec: ModelSpec) -> Family:
    """The family that the checkpoint's one architecture names."""
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise CheckpointError(
            spec.checkpoint, [f"config.json: architectures is {names!r}, expected one name"]
        )
    try:
        family: Family = FAMILIES[names[0]]
    except UnknownNameError as error:
        raise CheckpointError(spec.checkpoint, [f"config.json: {error}"]) from None
    return family


def sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """The words in which the families' tables give shapes, from a TensorRT-LLM config.json."""
    head = int(config["head_size"])
    return {
        "vocab": int(config["vocab_size"]),
        "said": int(config.get("lm_head_rows") or config["vocab_size"]),
        "hidden": int(config["hidden_size"]),
        "intermediate": int(config["intermediate_size"]),
        "head": head,
        "q": int(config["num_attention_heads"]) * head,
        "kv": int(config["num_key_value_heads"]) * head,
    }


def rope(config: Mapping[str, Any], default: float) -> tuple[Any, Any]:
    """(theta, scaling or None), from either spelling: two keys, or `rope_parameters`."""
    parameters = config.get("rope_parameters")
    theta, scaling = config.get("rope_theta"), config.get("rope_scaling")
    if isinstance(parameters, Mapping):
        theta = parameters.get("rope_theta", theta)
        scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    kind = isinstance(scaling, Mapping) and scaling.get("rope_type", scaling.get("type"))
    return (default if theta is None else theta), (None if kind == "default" else scaling)


def _head_dim(values: Mapping[str, Any]) -> int | None:
    hidden, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if is_size(hidden) and is_size(heads) and hidden % heads == 0:
        return int(hidden // heads)
    return None


def is_size(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LIMIT


def _is_positive(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value < float("inf")


def _wrong_sizes(values: Mapping[str, Any]) -> list[str]:
    problems = []
    for key in _SIZES:
        if key == "head_dim" and values.get(key) is None:
            if is_size(values.get("hidden_size")) and is_size(values.get("num_attention_heads")):
                problems.append(
                    f"config.json: hidden_size {values['hidden_size']} is not a multiple of "
                    f"num_attention_heads {values['num_attention_heads']}, and there is no head_dim"
                )
        elif key not in values or values[key] is None:
            if key != "num_key_value_heads":
                problems.append(f"config.json: {key} is missing")
        elif not is_size(values[key]):
            problems.append(f"config.json: {key} is {values[key]!r}, expected a positive integer")
    heads, kv_heads = values.get("num_attention_heads"), values.get("num_key_value_heads")
    if is_size(heads) and is_size(kv_heads) and heads % kv_heads:
        problems.append(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    layers = values.get("num_hidden_layers")
    if is_size(layers) and layers > _MAX_LAYERS:
        problems.append(f"config.json: num_hidden_layers is {layers}, at most {_MAX_LAYERS}")
    head_dim = values.get("head_dim")
    if is_size(head_dim) and head_dim % 2:
        problems.append(f"config.json: head_dim {head_dim} is odd; rotary embedding needs pairs")
    return problems


def _wrong_values(
    config: Mapping[str, Any], values: Mapping[str, Any], family: Family, spec: ModelSpec
) -> list[str]:
    problems = []
    theta, scaling = rope(config, values["rope_theta"])
    for key, value in {"rms_norm_eps": values["rms_norm_eps"], "rope_theta": theta}.items():
        if not _is_positive(value):
            problems.append(f"config.json: {key} is {value!r}, expected a positive number")
    if scaling is not None and not isinstance(scaling, Mapping):
        problems.append(f"config.json: rope_scaling is {scaling!r}, expected an object or null")
    window = values.get("sliding_window") if "sliding_window" in family.fields else None
    if window is not None and not is_size(window):
        problems.append(f"config.json: sliding_window is {window!r}, expected a positive integer")
    said, vocab = values.get("lm_head_rows"), values.get("vocab_size")
    if said is not None and not (is_size(said) and is_size(vocab) and said < vocab):
        problems.append(
            f"config.json: lm_head_rows is {said!r}, expected a number below vocab_size {vocab!r}"
        )
    for key, kind in {"hidden_act": str, "tie_word_embeddings": bool}.items():
        if not isinstance(values[key], kind):
            problems.append(f"config.json: {key} is {values[key]!r}, expected {kind.__name__}")
    only = {"partial_rotary_factor": (1, 1.0), **family.only}
    for key, allowed in only.items():
        if key in config and config[key] not in allowed:
            problems.append(
                f"config.json: {key} is {config[key]!r}; only "
                f"{' or '.join(map(repr, allowed))} can be converted"
            )
    problems += quantization_problems(config, spec)
    return problems


def _does_not_split(values: Mapping[str, Any], spec: ModelSpec) -> list[str]:
    tp, problems = spec.parallel.tp, []
    for key in ("num_attention_heads", "intermediate_size"):
        if values[key] % tp:
            problems.append(f"parallel.tp {tp} does not divide {key} {values[key]}")
    kv_heads = values["num_key_value_heads"]
    if kv_heads % tp and tp % kv_heads:
        problems.append(
            f"parallel.tp {tp}: must divide num_key_value_heads {kv_heads} or be a multiple of it"
        )
    return problems


def _wrong_layers(values: Mapping[str, Any], spec: ModelSpec) -> list[str]:
    count, problems = values["num_hidden_layers"], []
    if spec.layers is not None:
        beyond = sorted({layer for layer in spec.layers if layer >= count})
        if beyond:
            problems.append(f"layers: {beyond} not in this model; it has 0 to {count - 1}")
        if not spec.layers:
            problems.append("layers: empty; name at least one, or leave it out for all")
        count = len(spec.layers)
    if spec.parallel.pp > count:
        problems.append(f"parallel.pp {spec.parallel.pp} is more than {count} layer(s)")
    return problems


def _assemble(
    config: Mapping[str, Any], values: Mapping[str, Any], family: Family, spec: ModelSpec
) -> dict[str, Any]:
    theta, scaling = rope(config, values["rope_theta"])
    tp, pp = spec.parallel.tp, spec.parallel.pp
    return {
        "architecture": config["architectures"][0],
        "dtype": spec.dtype,
        "logits_dtype": "float32",
        "vocab_size": values["vocab_size"],
        "hidden_size": values["hidden_size"],
        "num_hidden_layers": len(spec.layers) if spec.layers else values["num_hidden_layers"],
        "num_attention_heads": values["num_attention_heads"],
        "num_key_value_heads": values["num_key_value_heads"],
        "head_size": values["head_dim"],
        "intermediate_size": values["intermediate_size"],
        "norm_epsilon": values["rms_norm_eps"],
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": values["max_position_embeddings"],
        "rotary_base": theta,
        "rotary_scaling": scaling,
        "rotary_embedding_dim": values["head_dim"],
        "use_parallel_embedding": family.parallel_embedding and tp > 1,
        "embedding_sharding_dim": 0,
        "mapping": {"world_size": tp * pp, "tp_size": tp, "pp_size": pp},
        "quantization": quantization_section(config, spec),
        "runtime_defaults": None,
        **{
            key: values[source]
            for key, source in family.fields.items()
            if values[source] is not None
        },
        **family.constants,
    }
