"""config.json of an EAGLE-3 head, whichever tool wrote it, as TensorRT-LLM reads it.

SafeAILab, SpecForge   a Llama config.json with draft_vocab_size
NVIDIA ModelOpt        the same with `eagle_config`
speculators            the Llama part under `transformer_layer_config`; captured layers are
                       numbered by the layer that reads a state, one more than TensorRT-LLM's number
                       (of the layer that writes it)

A head that was converted to speculators' layout may have kept TensorRT-LLM's numbers. It is known
by its layers: they are the ones that TensorRT-LLM and SGLang capture by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.checkpoint.config import rope
from toolkit.checkpoint.drafts.target import LLAMA_THETA, TargetFacts, is_size
from toolkit.recipe.release import Release

CAPTURED = "eagle_aux_hidden_state_layer_ids"
_NESTED = "transformer_layer_config"
_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
# Everything else of a config.json says nothing to TensorRT-LLM's draft model.
_KEPT = (
    "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size",
    "max_position_embeddings", "rms_norm_eps", "hidden_act",
)  # fmt: skip
_DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Switch:
    """A key that changes what the head computes."""

    neutral: Any  # the value, and the meaning of its absence, that every release computes
    since: Release | None  # honoured from this release on; None: by none
    says: str


# Found in `eagle_config` or beside it.
SWITCHES = {
    "norm_before_fc": Switch(False, (1, 3), "the captured states are normalised before fc"),
    "fc_norm": Switch(False, (1, 3), "each captured state has a norm of its own before fc"),
    "norm_output": Switch(False, (1, 3), "the next step reads the state after the last norm"),
    "return_hidden_post_norm": Switch(
        False, (1, 3), "the next step reads the state after the last norm"
    ),
    "norm_before_residual": Switch(False, None, "the residual is taken after hidden_norm"),
    "eh_proj_before_attn": Switch(False, None, "a projection stands before the attention"),
    "use_input_layernorm_in_first_layer": Switch(True, None, "the embedding is not normalised"),
    "use_last_layernorm": Switch(True, None, "there is no norm before lm_head"),
    "use_mtp_layernorm": Switch(False, None, "embedding and state have norms as in MTP"),
    "use_aux_hidden_state": Switch(True, None, "only the target's last state is read"),
    "parallel_draft_step": Switch(1, None, "several tokens are drafted in one pass"),
}


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head's own sizes, and what is left of its config.json."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head: int
    vocab: int
    target_hidden: int | None  # where it differs from `hidden`
    draft_vocab: int | None  # None: not said
    captured: tuple[int, ...] | None  # TensorRT-LLM's numbers; None: not said
    numbered: tuple[int, ...] | None  # the numbers that config.json has, in speculators' layout
    switches: Mapping[str, Any]  # those that are not neutral
    rope: tuple[Any, Any]  # theta, scaling
    says_theta: bool
    max_position_embeddings: int | None
    dtype: str | None
    kept: Mapping[str, Any]


def read_config(config: Mapping[str, Any], layers: int) -> tuple[HeadConfig | None, list[str]]:
    """The head's config in one form; without it, why it cannot be used. The target has `layers`."""
    inner = config.get(_NESTED)
    nested = isinstance(inner, Mapping)
    flat: dict[str, Any] = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    problems = _wrong(flat)
    if problems:
        return None, problems
    own = flat.get("eagle_config")
    words = {**config, **(own if isinstance(own, Mapping) else {})}
    captured = words.get(CAPTURED)
    theta, scaling = rope(flat, LLAMA_THETA)
    dtype = config.get("torch_dtype") or flat.get("torch_dtype") or flat.get("dtype")
    problems = _wrong_values(flat, theta, scaling, dtype)
    if captured is not None and not _is_layers(captured):
        problems.append(f"config.json: {CAPTURED} is {captured!r}, expected a list of layers")
    if problems:
        return None, problems
    heads = flat["num_attention_heads"]
    return HeadConfig(
        hidden=flat["hidden_size"],
        intermediate=flat["intermediate_size"],
        heads=heads,
        kv_heads=flat.get("num_key_value_heads") or heads,
        head=flat.get("head_dim") or flat["hidden_size"] // heads,
        vocab=flat["vocab_size"],
        target_hidden=config.get("target_hidden_size"),
        draft_vocab=config.get("draft_vocab_size"),
        captured=_captured(captured, nested, layers) if captured else None,
        numbered=tuple(captured) if captured and nested else None,
        switches={
            key: words[key]
            for key, switch in SWITCHES.items()
            if words.get(key) is not None and words[key] != switch.neutral
        },
        rope=(theta, scaling or None),
        says_theta=any(flat.get(key) is not None for key in ("rope_theta", "rope_parameters")),
        max_position_embeddings=flat.get("max_position_embeddings"),
        dtype=dtype,
        kept={key: flat[key] for key in _KEPT if flat.get(key) is not None},
    ), []


def _wrong(flat: Mapping[str, Any]) -> list[str]:
    optional = ("num_key_value_heads", "head_dim", "target_hidden_size", "draft_vocab_size")
    problems = [
        f"config.json: {key} is {flat.get(key)!r}, expected a positive integer"
        for key in (*_SIZES, *optional)
        if not is_size(flat.get(key)) and not (key in optional and flat.get(key) is None)
    ]
    layers = flat.get("num_hidden_layers", 1)
    if layers != 1:
        problems.append(f"config.json: num_hidden_layers is {layers!r}; an EAGLE-3 head has 1")
    if flat.get("kv_lora_rank"):
        problems.append("config.json: kv_lora_rank: heads with latent attention are not supported")
    if flat.get("quantization_config") or flat.get("quantization"):
        problems.append("config.json: the head is quantised; use its float16 or bfloat16 weights")
    if not problems:
        hidden, heads = flat["hidden_size"], flat["num_attention_heads"]
        kv_heads = flat.get("num_key_value_heads") or heads
        if heads % kv_heads:
            problems.append(
                f"config.json: num_attention_heads {heads} is not a multiple of "
                f"num_key_value_heads {kv_heads}"
            )
        if flat.get("head_dim") is None and hidden % heads:
            problems.append(
                f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads "
                f"{heads}, and there is no head_dim"
            )
    return problems


def _wrong_values(flat: Mapping[str, Any], theta: Any, scaling: Any, dtype: Any) -> list[str]:
    """Everything else that is written out, or compared with the target."""
    problems = [
        f"config.json: {key} is {value!r}, expected a positive number"
        for key, value in {"rope_theta": theta, "rms_norm_eps": flat.get("rms_norm_eps")}.items()
        if value is not None and not _is_positive(value)
    ]
    if scaling is not None and not isinstance(scaling, Mapping):
        problems.append(f"config.json: rope_scaling is {scaling!r}, expected an object or null")
    longest = flat.get("max_position_embeddings")
    if longest is not None and not is_size(longest):
        problems.append(
            f"config.json: max_position_embeddings is {longest!r}, expected a positive integer"
        )
    if not isinstance(flat.get("hidden_act", ""), str):
        problems.append(f"config.json: hidden_act is {flat['hidden_act']!r}, expected a name")
    if dtype is not None and dtype not in _DTYPES:
        problems.append(
            f"config.json: torch_dtype is {dtype!r}, expected one of {', '.join(_DTYPES)}"
        )
    return problems


def _captured(named: list[int], nested: bool, layers: int) -> tuple[int, ...]:
    by_default = {1, layers // 2 - 1, layers - 4}
    return tuple(named if not nested or set(named) == by_default else [i - 1 for i in named])


def _is_positive(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value < float("inf")


def _is_layers(value: Any) -> bool:
    return isinstance(value, list) and all(type(i) is int for i in value)


def config_problems(head: HeadConfig, target: TargetFacts, release: Release) -> list[str]:
    """What of the config does not fit the target, or what this release would compute otherwise."""
    problems = []
    source = head.target_hidden or head.hidden
    if source != target.hidden:
        key = "target_hidden_size" if head.target_hidden else "hidden_size"
        problems.append(
            f"config.json: {key} is {source}, the target's hidden_size is {target.hidden}: the "
            "head is for another model"
        )
    if head.vocab != target.vocab:
        problems.append(
            f"config.json: vocab_size is {head.vocab}, the target's is {target.vocab}: the head "
            "is for another vocabulary"
        )
    for key, value in head.switches.items():
        switch = SWITCHES[key]
        if switch.since is None:
            problems.append(
                f"config.json: {key} is {value!r} ({switch.says}), which TensorRT-LLM does not "
                "compute; use a head that was trained without it"
            )
        elif release < switch.since:
            problems.append(
                f"config.json: {key} is {value!r} ({switch.says}), which TensorRT-LLM "
                f"{_number(release)} ignores; use {_number(switch.since)} or newer"
            )
    return problems + _wrong_layers(head, target)


def _wrong_layers(head: HeadConfig, target: TargetFacts) -> list[str]:
    named = head.captured or ()
    beyond = [i for i in named if not 0 <= i < target.layers]
    problems = []
    if beyond:
        counted = (
            "; the head seems to number states, of which 0 is the embedding: write each one less"
            if beyond == [target.layers] and not head.numbered
            else ""
        )
        problems.append(
            f"config.json: {CAPTURED}: {beyond} not in the target, which has layers 0 to "
            f"{target.layers - 1} (counted by the layer that writes the state){counted}"
        )
    if len(set(named)) < len(named):
        problems.append(f"config.json: {CAPTURED} {list(named)} names a layer twice")
    return problems


def config_notes(head: HeadConfig, target: TargetFacts) -> list[str]:
    """Where head and target differ although both load: right only if the head was trained so."""
    notes = []
    if head.numbered and head.captured:
        how = "as they are" if head.numbered == head.captured else "as numbers of reading layers"
        notes.append(
            f"config.json: {CAPTURED} {list(head.numbered)} taken {how}: the states that layers "
            f"{list(head.captured)} write; when few tokens are accepted, try the other reading"
        )
    theta, scaling = head.rope
    if theta != target.rope_theta or scaling != target.rope_scaling:
        assumed = "" if head.says_theta else " (not in config.json: the default)"
        notes.append(
            f"config.json: rope_theta {theta}{assumed} and rope_scaling {scaling}, the target has "
            f"{target.rope_theta} and {target.rope_scaling}; right only if the head was trained so"
        )
    longest, reach = head.max_position_embeddings, target.max_position_embeddings
    if longest and reach and longest < reach:
        notes.append(
            f"config.json: max_position_embeddings {longest}, the target's is {reach}; keep "
            f"engine.max_seq_len within {longest}, or expect few accepted tokens beyond it"
        )
    if head.dtype and target.dtype and head.dtype != target.dtype:
        notes.append(f"weights are {head.dtype}, the target's are {target.dtype}")
    return notes


def written_config(
    head: HeadConfig, *, draft_vocab: int, dtype: str, biases: Mapping[str, bool]
) -> dict[str, Any]:
    """config.json for TensorRT-LLM; draft_vocab_size is always in it, since it names the class."""
    eagle = {CAPTURED: list(head.captured)} if head.captured else {}
    beside = {key: head.switches[key] for key in ("fc_norm", "norm_output") if key in head.switches}
    inside = {key: value for key, value in head.switches.items() if key not in beside}
    eagle |= inside
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **head.kept,
        "num_hidden_layers": 1,
        "num_key_value_heads": head.kv_heads,
        "head_dim": head.head,
        "rope_theta": head.rope[0],
        "rope_scaling": None if head.rope[1] is None else dict(head.rope[1]),
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "draft_vocab_size": draft_vocab,
        **({"target_hidden_size": head.target_hidden} if head.target_hidden else {}),
        **biases,
        **beside,
        **({"eagle_config": eagle} if eagle else {}),
    }


def _number(release: Release) -> str:
    return ".".join(map(str, release))
