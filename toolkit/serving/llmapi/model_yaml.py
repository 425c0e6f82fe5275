"""model.yaml: what LLM() is called with and how Triton serves it, in the shape that upstream reads.

Every key but `triton_config` goes to `tensorrt_llm.LLM`. A draft that came with the deployment is
named by its absolute path, or, in a repository that can be moved, by one from the model's directory
that starts with ./ (which only our model.py understands).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from toolkit.engine.llmapi.deployment import DRAFT, LLM_ARGS, read_llm_args
from toolkit.engine.llmapi.notes import recipe_notes
from toolkit.engine.llmapi.profiles import profile
from toolkit.errors import InputError
from toolkit.recipe.schema import Recipe
from toolkit.serving.llmapi.contract import SECTION, YAML

DRAFT_KEYS = ("speculative_model", "speculative_model_dir")


@dataclass(frozen=True)
class ModelYaml:
    """The file, taken apart."""

    llm_args: dict[str, Any]
    decoupled: bool
    stream_deltas: bool
    cancellation_check_period_ms: int
    max_queue_size: int


def model_yaml(recipe: Recipe, deployment: Path, place: str) -> str:
    """The text; `place` is how the model's config names the deployment's directory."""
    args = read_llm_args(deployment, recipe)
    key = profile(recipe.tensorrt_llm).key("speculative_model")
    speculation = args.get("speculative_config") or {}
    if speculation.get(key) == str(deployment / DRAFT):
        draft = f"{place}/{DRAFT}"
        draft = draft if draft.startswith("/") else f"./{draft}"
        args["speculative_config"] = {**speculation, key: draft}
    serve = recipe.serve.pytorch
    section = {
        "max_batch_size": 0,  # Triton's: the LLM API batches by itself
        "decoupled": serve.decoupled,
        "cancellation_check_period_ms": serve.cancellation_check_period_ms,
        "stream_deltas": serve.stream_deltas,
        "max_queue_size": serve.max_queue_size,
    }
    head = [
        f"{recipe.name}: {recipe.speculation.drafter} on TensorRT-LLM {recipe.tensorrt_llm}",
        f"Made by spectool. Everything but {SECTION} is handed to tensorrt_llm.LLM.",
        *(f"- {note}" for note in recipe_notes(recipe)),
    ]
    comments = "".join(f"# {' '.join(line.splitlines())}\n" for line in head)
    return comments + yaml.safe_dump({**args, SECTION: section}, sort_keys=False)


def has_draft(deployment: Path) -> bool:
    """Whether a draft lies in the deployment, so that the repository must name it."""
    return (deployment / LLM_ARGS).is_file() and (deployment / DRAFT).is_dir()


def read_model_yaml(version_dir: Path) -> ModelYaml:
    """The file of one version of the model; LLM_CONFIG_PATH names another one beside it."""
    path = version_dir / os.environ.get("LLM_CONFIG_PATH", YAML)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: not readable: {error}") from None
    section = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(section, dict):
        raise InputError(f"{path}: no section {SECTION}")
    if section.get("max_batch_size") != 0:
        raise InputError(f"{path}: {SECTION}.max_batch_size must be 0: the LLM API batches itself")
    args = {key: value for key, value in document.items() if key != SECTION}
    return ModelYaml(
        llm_args=_with_absolute_draft(args, version_dir.parent),
        decoupled=bool(section.get("decoupled", False)),
        stream_deltas=bool(section.get("stream_deltas", False)),
        cancellation_check_period_ms=int(section.get("cancellation_check_period_ms", 100)),
        max_queue_size=int(section.get("max_queue_size", 256)),
    )


def _with_absolute_draft(args: dict[str, Any], model_dir: Path) -> dict[str, Any]:
    speculation = args.get("speculative_config")
    if not isinstance(speculation, dict):
        return args
    found = {
        key: str(model_dir / value) if key in DRAFT_KEYS and str(value).startswith("./") else value
        for key, value in speculation.items()
    }
    return {**args, "speculative_config": found}
