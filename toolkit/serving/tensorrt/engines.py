"""The config of a model that is nothing but an engine: TensorRT-LLM's C++ backend runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from toolkit.engine.built import BuiltModels
from toolkit.engine.trtllm.command import release_of
from toolkit.engine.trtllm.directory import TrtEngine, read_engine
from toolkit.engine.trtllm.placement import Placement, external, placement
from toolkit.engine.trtllm.triton_parameters import WORKER
from toolkit.errors import RecipeError
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.serving.llm_names import llm_name
from toolkit.serving.pbtxt import Queue, model_config
from toolkit.serving.served import Place, ServedModel
from toolkit.serving.tensorrt.memory import Share, shares
from toolkit.serving.tensorrt.tensors import engine_contract

_LOGITS = {"float32": "FP32", "float16": "FP16"}


def engine_models(built: BuiltModels, place: Place) -> list[ServedModel]:
    """One model for each engine; RecipeError when the recipe and its engines disagree."""
    recipe, engines = built.recipe, read_engines(built.engines)
    if problems := list(_problems(recipe, engines)):
        raise RecipeError(recipe.name, problems)
    where = placement(recipe)
    memory = shares(recipe, engines, where)
    return [
        _model(
            recipe,
            role,
            engine,
            place.absolute(llm_name(role), built.engines[role]),
            where,
            memory[role],
            _guided(recipe, place.absolute(llm_name(role), built.tokenizer_dir)),
        )
        for role, engine in engines.items()
    ]


def read_engines(directories: Mapping[str, Path]) -> dict[str, TrtEngine]:
    return {role: read_engine(path) for role, path in directories.items()}


def streams(recipe: Recipe) -> bool:
    """Whether the target's model gives several responses to a request."""
    said = recipe.serve.tensorrt.decoupled
    return not external(recipe) if said is None else said


def _model(
    recipe: Recipe,
    role: str,
    engine: TrtEngine,
    path: str,
    where: Placement,
    share: Share,
    guided: Mapping[str, str],
) -> ServedModel:
    serve = recipe.serve.tensorrt
    decoupled = role == "target" and streams(recipe)
    logits = _LOGITS[str(engine.pretrained.get("logits_dtype", "float32"))]
    config = model_config(
        llm_name(role),
        engine_contract(release_of(recipe), decoupled=decoupled, logits=logits),
        {
            **_fixed(recipe, engine, path),
            **_placed(role, where),
            **_memory(recipe, role, share),
            **(_drafting(recipe) if role == "target" else {}),
            **guided,
            **serve.parameters,
        },
        max_batch_size=recipe.engine.max_batch_size,
        backend="tensorrtllm",
        queue=Queue(serve.max_queue_size, serve.max_queue_delay_microseconds),
    )
    return ServedModel(config, None, role)


def _fixed(recipe: Recipe, engine: TrtEngine, path: str) -> dict[str, str]:
    serve = recipe.serve.tensorrt
    found = {
        "gpt_model_path": path,
        "gpt_model_type": serve.batching_strategy,
        "max_beam_width": str(engine.build["max_beam_width"]),
        "batch_scheduler_policy": serve.batch_scheduler_policy,
        "exclude_input_in_output": _flag(serve.exclude_input_in_output),
        "cancellation_check_period_ms": str(serve.cancellation_check_period_ms),
        "stats_check_period_ms": str(serve.stats_check_period_ms),
        "executor_worker_path": WORKER,
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    }
    chunked = serve.enable_chunked_context
    if chunked is None and external(recipe):
        # Each step sends all text so far, and without chunks it must fit into max_num_tokens.
        chunked = int(engine.build["max_num_tokens"]) < int(engine.build["max_seq_len"])
    if chunked is not None:
        found["enable_chunked_context"] = _flag(chunked)
    if external(recipe) and serve.fast_logits:
        found["speculative_decoding_fast_logits"] = "true"
    return found


def _placed(role: str, where: Placement) -> dict[str, str]:
    found = {"gpu_device_ids": ",".join(map(str, where.gpus[role]))}
    if role in where.participants:
        found["participant_ids"] = ",".join(map(str, where.participants[role]))
    return found


def _memory(recipe: Recipe, role: str, share: Share) -> dict[str, str]:
    serve = recipe.serve.tensorrt
    windows = serve.engine(role).max_attention_window_size
    reuse = serve.enable_kv_cache_reuse
    found = {"kv_cache_free_gpu_mem_fraction": f"{share.fraction:g}"}
    if share.tokens:
        found["max_tokens_in_paged_kv_cache"] = str(share.tokens)
    if windows:
        found["max_attention_window_size"] = ",".join(map(str, windows))
    if reuse is not None or external(recipe):
        found["enable_kv_cache_reuse"] = _flag(True if reuse is None else reuse)
    if serve.kv_cache_host_memory_bytes:
        found["kv_cache_host_memory_bytes"] = str(serve.kv_cache_host_memory_bytes)
    return found


def _guided(recipe: Recipe, tokenizer: str) -> dict[str, str]:
    """Grammars are compiled over the tokens of a tokenizer that the engine itself reads."""
    backend = recipe.serve.tensorrt.guided_decoding
    return {"guided_decoding_backend": backend, "tokenizer_dir": tokenizer} if backend else {}


def _drafting(recipe: Recipe) -> Mapping[str, str]:
    options = recipe.speculation
    found: Mapping[str, str] = DRAFTERS[options.drafter].triton_parameters(options)
    return found


def _problems(recipe: Recipe, engines: Mapping[str, TrtEngine]) -> Iterator[str]:
    options = recipe.speculation
    drafter = DRAFTERS[options.drafter]
    for path, text in drafter.triton_problems(options, release_of(recipe)):
        yield f"{'.'.join(map(str, path))}: {text}"
    for role, engine in engines.items():
        wanted = placement(recipe).gpus[role]
        if engine.world_size != len(wanted):
            yield (
                f"{role}: the engine has {engine.world_size} rank(s), the recipe places "
                f"{len(wanted)}: {engine.directory}"
            )
        if str(engine.pretrained.get("logits_dtype", "float32")) not in _LOGITS:
            yield f"{role}: logits_dtype {engine.pretrained['logits_dtype']!r}: {engine.directory}"


def _flag(value: bool) -> str:
    return str(value).lower()
