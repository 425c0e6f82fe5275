"""Which models a repository holds: each is a folder of triton_repo (or an engine) and a config.

Engines and tokenizers are named by path, absolute or relative to the model's directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from toolkit.engine.built import BuiltModels
from toolkit.recipe.guided import GuidedDecoding
from toolkit.recipe.schema import Recipe
from toolkit.serving import contract
from toolkit.serving.ensemble import plain_steps
from toolkit.serving.llm_names import llm_name
from toolkit.serving.llmapi.layouts import layout_of as llmapi_layout
from toolkit.serving.pbtxt import ensemble_config, model_config
from toolkit.serving.served import Layout, Place, ServedModel
from toolkit.serving.tensorrt.layouts import layout_of as engine_layout
from toolkit.speculation.grammar import guide_of


def _bls(built: BuiltModels, place: Place) -> list[ServedModel]:
    """Tokenizers, one LLM model per engine, the loop between them, and a plain ensemble."""
    size = built.recipe.engine.max_batch_size
    tokenizer = built.tokenizer_dir
    names = {role: llm_name(role) for role in built.engines}
    llms = [
        ServedModel(
            model_config(
                name,
                contract.TENSORRT_LLM,
                _llm_parameters(
                    built, role, place(name, built.engines[role]), place(name, tokenizer)
                ),
                max_batch_size=size,
            ),
            "tensorrt_llm",
            role,
        )
        for role, name in names.items()
    ]
    longest = str(built.recipe.engine.max_seq_len)
    texts = [
        ServedModel(
            model_config(
                name, of, {"tokenizer_dir": place(name, tokenizer), **more}, max_batch_size=size
            ),
            name,
        )
        for name, of, more in (
            ("preprocessing", contract.PREPROCESSING, {"max_seq_len": longest}),
            ("postprocessing", contract.POSTPROCESSING, {}),
        )
    ]
    bls = {
        "tensorrt_llm_model_name": names["target"],
        "tokenizer_dir": place("tensorrt_llm_bls", tokenizer),
        "speculation": built.recipe.speculation.model_dump_json(),
        "max_seq_len": str(built.recipe.engine.max_seq_len),
        "max_queue_size": str(built.recipe.serve.max_queue_size),
    }
    if grammar := _self_contained(built.recipe).guided_decoding:
        bls["guided_decoding"] = grammar.model_dump_json()
    if "draft" in names:
        bls["tensorrt_llm_draft_model_name"] = names["draft"]
    loop = model_config("tensorrt_llm_bls", contract.TENSORRT_LLM_BLS, bls, max_batch_size=size)
    ensemble = ensemble_config("ensemble", contract.ENSEMBLE, ENSEMBLE_STEPS, max_batch_size=size)
    return [*texts, *llms, ServedModel(loop, "tensorrt_llm_bls"), ServedModel(ensemble)]


def _inprocess(built: BuiltModels, place: Place) -> list[ServedModel]:
    """One model with everything in it."""
    name = "spectool"
    parameters = {
        "recipe": _self_contained(built.recipe).model_dump_json(),
        "engine_dirs": _places(name, built.engines, place),
        "tokenizer_dirs": _places(name, built.tokenizers, place),
    }
    config = model_config(
        name, contract.INPROCESS, parameters, max_batch_size=built.recipe.engine.max_batch_size
    )
    return [ServedModel(config, name)]


LAYOUTS: Mapping[str, Layout] = {
    "bls": Layout("bls", "tensorrt_llm_bls", _bls),
    "inprocess": Layout("inprocess", "spectool", _inprocess),
}
_BY_BACKEND: Mapping[str, Callable[[Recipe], Layout]] = {
    "cpu": lambda recipe: LAYOUTS[recipe.serve.layout],
    "tensorrt": engine_layout,
    "pytorch": llmapi_layout,
}


def layout_of(recipe: Recipe) -> Layout:
    """How a recipe is served."""
    return _BY_BACKEND[recipe.backend](recipe)


# Plain decoding without our loop: the shape of TensorRT-LLM's own ensemble.
ENSEMBLE_STEPS = plain_steps(
    {
        "guided_decoding_guide_type": "guided_decoding_guide_type",
        "guided_decoding_guide": "guided_decoding_guide",
        "exclude_input_in_output": "exclude_input_in_output",
        "runtime_top_k": "top_k",
        "runtime_top_p": "top_p",
        "temperature": "temperature",
        "seed": "seed",
    },
    {},
)


def _self_contained(recipe: Recipe) -> Recipe:
    """With the text of its grammar in place of a file, which the server need not have."""
    if recipe.guided_decoding is None or recipe.guided_decoding.guide_file is None:
        return recipe
    guide = guide_of(recipe.guided_decoding)
    inline = GuidedDecoding(guide_type=guide.type, guide=guide.text)
    return recipe.model_copy(update={"guided_decoding": inline})


def _llm_parameters(
    built: BuiltModels, role: str, engine_dir: str, tokenizer_dir: str
) -> dict[str, str]:
    serve = built.recipe.serve
    parameters = {
        "gpt_model_path": engine_dir,
        "exclude_input_in_output": "false",
        "role": role,
        "tokenizer_dir": tokenizer_dir,
        "max_queue_size": str(serve.max_queue_size),
    }
    if serve.kv_cache_mb is not None:
        # Each model is a process of its own, and they share the memory.
        parameters["kv_cache_bytes"] = str(serve.kv_cache_mb * 10**6 // len(built.engines))
    if role != "target":
        parameters["vocab_size"] = str(engine_vocab_size(built.engines["target"]))
    return parameters


def engine_vocab_size(engine_dir: Path) -> int:
    """The vocabulary of an engine, from its config.json."""
    config = json.loads((engine_dir / "config.json").read_text(encoding="utf-8"))
    return int(config["pretrained_config"]["vocab_size"])


def _places(model: str, directories: Mapping[str, Path], place: Place) -> str:
    return json.dumps({role: place(model, path) for role, path in directories.items()})
