"""Rules for models that TensorRT-LLM's C++ backend runs: parameters, GPUs, ranks, KV memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.engine.trtllm.directory import TrtEngine, read_engine
from toolkit.engine.trtllm.triton_parameters import PARAMETERS
from toolkit.errors import InputError, did_you_mean
from toolkit.recipe.release import release
from toolkit.serving.lint.ours import value_problem
from toolkit.serving.lint.repository import BACKEND, Finding, Model, Repository
from toolkit.serving.pbtxt import parameters_of

_DEFAULT_FRACTION = 0.9
# Speculative mode of an engine -> decoding_mode of its model.
_DECODING = {
    "medusa": "medusa",
    "eagle": "eagle",
    "lookahead_decoding": "lookahead",
    "explicit_draft_tokens": "redrafter",
}
_LOOKAHEAD = tuple(
    f"lookahead_{name}" for name in ("window_size", "ngram_size", "verification_set_size")
)


def check_engines(repository: Repository) -> Iterator[Finding]:
    """Every model of backend tensorrtllm, ours or not."""
    engines = [model for model in repository.parsed if model.config.backend == BACKEND]
    for model in engines:
        if repository.contract(model) is None:
            yield from _check_names(model)
        yield from _check_path(model)
        if engine := _engine(model):
            yield from _check_engine(repository, model, engine)
        if model.parameters.get("decoding_mode") == "lookahead":
            for name in set(_LOOKAHEAD) - set(model.parameters):
                yield model.error(f"decoding_mode lookahead needs parameter {name!r}")
    yield from _check_participants(engines)
    yield from _check_memory(engines)
    yield from _check_bls(repository, engines)


def _check_names(model: Model) -> Iterator[Finding]:
    """The backend ignores what it does not know, a misspelt name included."""
    for name in parameters_of(model.config):
        if name not in PARAMETERS:
            hint = did_you_mean(name, PARAMETERS)
            say = model.error if hint else model.warning
            yield say(f"parameter {name!r}: the tensorrtllm backend reads no such{hint}", name)
    for name, parameter in PARAMETERS.items():
        value = model.parameters.get(name)
        if value is None and parameter.required:
            yield model.error(f"parameter {name!r} is missing or empty")
        elif value is not None and (problem := value_problem(parameter.kind, value)):
            yield model.error(f"parameter {name!r}: {problem}", name)


def _check_path(model: Model) -> Iterator[Finding]:
    path = model.parameters.get("gpt_model_path")
    if path and not Path(path).is_absolute():
        yield model.error(
            f"parameter 'gpt_model_path': {path!r} starts wherever the server is started; write an "
            "absolute path",
            "gpt_model_path",
        )


def _engine(model: Model) -> TrtEngine | None:
    path = model.parameters.get("gpt_model_path")
    try:
        return read_engine(Path(path)) if path else None
    except InputError:
        return None  # said by the rule about paths


def _check_engine(repository: Repository, model: Model, engine: TrtEngine) -> Iterator[Finding]:
    made, wanted = release(engine.version), repository.release
    if wanted and made != wanted:
        number = ".".join(map(str, wanted))
        yield model.error(
            f"the engine was built by {engine.version}, the repository is for {number}"
        )
    yield from _check_mode(model, engine)
    for parameter in ("gpu_device_ids", "participant_ids"):
        for group in _groups(model, parameter):
            if len(group) != engine.world_size:
                yield model.error(
                    f"parameter {parameter!r}: {len(group)} number(s) for an engine of "
                    f"{engine.world_size} rank(s)",
                    parameter,
                )
            if len(set(group)) != len(group):
                yield model.error(f"parameter {parameter!r}: one of them twice", parameter)


def _check_mode(model: Model, engine: TrtEngine) -> Iterator[Finding]:
    said, inside = model.parameters.get("decoding_mode"), _DECODING.get(engine.mode or "")
    if inside and said != inside:
        yield model.error(
            f"parameter 'decoding_mode': {said or 'missing'}, but the engine was built for "
            f"{engine.mode}: {inside}",
            "decoding_mode",
        )
    elif said in _DECODING.values() and not inside:
        yield model.error(
            f"parameter 'decoding_mode': {said}, but the engine was built "
            f"{f'for {engine.mode}' if engine.mode else 'without speculation'}",
            "decoding_mode",
        )
    choices = model.parameters.get(f"{said}_choices", "").count("{")
    if choices > engine.max_draft_len:
        yield model.error(
            f"parameter '{said}_choices': {choices} nodes, the engine drafts at most "
            f"{engine.max_draft_len}",
            f"{said}_choices",
        )
    if engine.mode == "draft_tokens_external":
        yield from _check_reuse(model, engine)


def _check_reuse(model: Model, engine: TrtEngine) -> Iterator[Finding]:
    name = "enable_kv_cache_reuse"
    if model.parameters.get(name, "").lower() != "true":
        yield model.error(
            f"parameter {name!r} must be true: drafts come with all text so far, which every step "
            "would read again",
            name,
        )
    if not engine.block_reuse:
        yield model.error("the engine was built without paged context FMHA: it cannot reuse blocks")


def _check_participants(engines: list[Model]) -> Iterator[Finding]:
    owners: dict[int, str] = {}
    for model in engines:
        ranks = {rank for group in _groups(model, "participant_ids") for rank in group}
        for rank in sorted(ranks):
            if rank == 0:
                yield model.error(
                    "parameter 'participant_ids': rank 0 is Triton itself", "participant_ids"
                )
            elif rank in owners:
                yield model.error(
                    f"parameter 'participant_ids': rank {rank} is {owners[rank]}'s already",
                    "participant_ids",
                )
            owners.setdefault(rank, model.name)
        fast = model.parameters.get("speculative_decoding_fast_logits", "").lower() == "true"
        if fast and not ranks:
            yield model.warning(
                "parameter 'speculative_decoding_fast_logits': switched off without "
                "participant_ids (orchestrator that spawns no processes)",
                "speculative_decoding_fast_logits",
            )


@dataclass(frozen=True, slots=True)
class _Pool:
    model: Model
    fraction: float
    bounded: bool  # by a number of tokens


def _check_memory(engines: list[Model]) -> Iterator[Finding]:
    """Fractions are of what is free at the time: simulated in the order of names."""
    by_gpu: dict[int, list[_Pool]] = {}
    for model in sorted(engines, key=lambda model: model.name):
        groups = _groups(model, "gpu_device_ids") or [_default(model)]
        for gpu in {gpu for group in groups for gpu in group}:
            by_gpu.setdefault(gpu, []).append(_pool(model))
    said = set()
    for gpu, pools in sorted(by_gpu.items()):
        names = tuple(pool.model.name for pool in pools)
        if len(pools) < 2 or all(pool.bounded for pool in pools) or names in said:
            continue
        said.add(names)
        yield pools[-1].model.warning(
            f"GPU {gpu} holds {len(pools)} engines, and kv_cache_free_gpu_mem_fraction is of what "
            f"is free when each loads: {_simulated(pools)}. Triton loads them side by side, so the "
            "order is a race: set max_tokens_in_paged_kv_cache in each",
            "kv_cache_free_gpu_mem_fraction",
        )


def _pool(model: Model) -> _Pool:
    given = model.parameters.get("kv_cache_free_gpu_mem_fraction", "")
    try:
        fraction = float(given) if given else _DEFAULT_FRACTION
    except ValueError:
        fraction = _DEFAULT_FRACTION  # said by the rule about parameters
    return _Pool(model, fraction, "max_tokens_in_paged_kv_cache" in model.parameters)


def _simulated(pools: list[_Pool]) -> str:
    rest, parts = 1.0, []
    for pool in pools:
        parts.append(f"{pool.model.name} {rest * pool.fraction:.2f}")
        rest *= 1 - pool.fraction
    return ", then ".join(parts) + " of the memory left after all weights"


def _default(model: Model) -> list[int]:
    """All visible GPUs: as far as the engine tells, the first ones."""
    engine = _engine(model)
    return list(range(engine.world_size if engine else 1))


def _check_bls(repository: Repository, engines: list[Model]) -> Iterator[Finding]:
    """Our loop asks for one response a call, in the words of a release that it must know."""
    names = {model.name: model for model in engines}
    for bls in repository.parsed:
        called = [
            names[value]
            for key, value in bls.parameters.items()
            if key in ("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name")
            and value in names
        ]
        if not bls.ours or not called:
            continue
        if "tensorrt_llm_release" not in bls.parameters:
            yield bls.error(
                "parameter 'tensorrt_llm_release' is missing: engines differ by release"
            )
        for model in called:
            if model.config.model_transaction_policy.decoupled:
                yield model.error(
                    f"decoupled: {bls.name} asks it for one response a call; remove "
                    "model_transaction_policy"
                )


def _groups(model: Model, parameter: str) -> list[list[int]]:
    """`0,1;2,3` as [[0, 1], [2, 3]]; [] where it is unset or no such list."""
    text = model.parameters.get(parameter, "")
    try:
        return [[int(n) for n in group.split(",")] for group in text.split(";")] if text else []
    except ValueError:
        return []  # said by the rule about parameters
