"""The one model that serves a deployment of the LLM API."""

from __future__ import annotations

from toolkit.engine.built import BuiltModels
from toolkit.engine.llmapi.placement import gpu_groups, instances
from toolkit.recipe.schema import Recipe
from toolkit.serving.llmapi import launch
from toolkit.serving.llmapi.contract import MODEL, YAML, llmapi_contract
from toolkit.serving.llmapi.model_yaml import has_draft, model_yaml
from toolkit.serving.pbtxt import model_config
from toolkit.serving.served import Layout, Place, ServedModel

NEEDS = "package tensorrt_llm"
SOURCE = "llmapi"  # folder of triton_repo


def layout_of(recipe: Recipe) -> Layout:
    return _LAYOUT


def _models(built: BuiltModels, place: Place) -> list[ServedModel]:
    recipe, deployment = built.recipe, built.engines["target"]
    # Nothing else of the deployment is needed here: model.yaml says the rest.
    where = place(MODEL, deployment) if has_draft(deployment) else ""
    parameters = {"tensorrt_llm_release": recipe.tensorrt_llm}
    if groups := gpu_groups(recipe):
        parameters["gpu_device_ids"] = groups
    config = model_config(
        MODEL,
        llmapi_contract(decoupled=recipe.serve.pytorch.decoupled),
        parameters,
        max_batch_size=0,
        instances=instances(recipe),
    )
    return [ServedModel(config, SOURCE, "target", {YAML: model_yaml(recipe, deployment, where)})]


def _notes(built: BuiltModels) -> list[str]:
    return [launch.describe(built.recipe)]


_LAYOUT = Layout("llmapi", MODEL, _models, launch.programs, _notes, NEEDS)
