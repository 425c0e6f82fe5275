"""How engines are laid out: behind our BLS where drafts come with requests, else in an ensemble.

An engine that drafts by itself is best asked once for the whole text: a loop outside it would cut
its steps short. Its ensemble streams as the backend does, if the engine's model is decoupled.
"""

from __future__ import annotations

from toolkit.engine.built import BuiltModels
from toolkit.engine.trtllm.command import release_of
from toolkit.engine.trtllm.placement import external, placement
from toolkit.recipe.schema import Recipe
from toolkit.serving import contract
from toolkit.serving.llm_names import llm_name
from toolkit.serving.pbtxt import ensemble_config, model_config
from toolkit.serving.served import Layout, Place, ServedModel
from toolkit.serving.tensorrt import launch, memory
from toolkit.serving.tensorrt.engines import engine_models, read_engines, streams
from toolkit.serving.tensorrt.tensors import ensemble_contract, ensemble_steps

NEEDS = "backend tensorrtllm"
_MOST_TEXT_INSTANCES = 4


def layout_of(recipe: Recipe) -> Layout:
    return _BLS if external(recipe) else _ENSEMBLE


def _bls_models(built: BuiltModels, place: Place) -> list[ServedModel]:
    """Everything of an ensemble, and our loop over the engines, which clients ask."""
    models = _ensemble_models(built, place)
    recipe = built.recipe
    names = {role: llm_name(role) for role in built.engines}
    parameters = {
        "tensorrt_llm_model_name": names["target"],
        "tokenizer_dir": place("tensorrt_llm_bls", built.tokenizer_dir),
        "speculation": recipe.speculation.model_dump_json(),
        "max_seq_len": str(recipe.engine.max_seq_len),
        "tensorrt_llm_release": ".".join(map(str, release_of(recipe))),
        "use_draft_logits": _flag(getattr(recipe.speculation, "use_draft_logits", False)),
        "speculative_decoding_fast_logits": _flag(recipe.serve.tensorrt.fast_logits),
    }
    if "draft" in names:
        parameters["tensorrt_llm_draft_model_name"] = names["draft"]
    if size := recipe.serve.tensorrt.max_queue_size:
        parameters["max_queue_size"] = str(size)
    # One instance: it has a thread for each request of a batch, and policies that know them all.
    config = model_config(
        "tensorrt_llm_bls",
        contract.TENSORRT_LLM_BLS,
        parameters,
        max_batch_size=recipe.engine.max_batch_size,
    )
    return [*models[:-1], ServedModel(config, "tensorrt_llm_bls"), models[-1]]


def _ensemble_models(built: BuiltModels, place: Place) -> list[ServedModel]:
    recipe = built.recipe
    size, release = recipe.engine.max_batch_size, release_of(recipe)
    instances = recipe.serve.tensorrt.text_instances or min(size, _MOST_TEXT_INSTANCES)
    texts = [
        ServedModel(
            model_config(
                name,
                of,
                {"tokenizer_dir": place(name, built.tokenizer_dir)},
                max_batch_size=size,
                instances=instances,
            ),
            name,
        )
        for name, of in (
            ("preprocessing", contract.PREPROCESSING),
            ("postprocessing", contract.POSTPROCESSING),
        )
    ]
    streaming = streams(recipe)
    ensemble = ensemble_config(
        "ensemble",
        ensemble_contract(release, streams=streaming),
        ensemble_steps(release, streams=streaming),
        max_batch_size=size,
    )
    return [*texts, *engine_models(built, place), ServedModel(ensemble)]


def _notes(built: BuiltModels) -> list[str]:
    place = placement(built.recipe)
    found = memory.shares(built.recipe, read_engines(built.engines), place)
    return [launch.describe(place), *memory.notes(found, place)]


def _flag(value: bool) -> str:
    return str(value).lower()


_BLS = Layout("bls", "tensorrt_llm_bls", _bls_models, launch.programs, _notes, NEEDS)
_ENSEMBLE = Layout("ensemble", "ensemble", _ensemble_models, launch.programs, _notes, NEEDS)
