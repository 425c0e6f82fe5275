"""Rules for NVIDIA's own models around engines: filled templates whose code is not ours.

Read in the templates of tensorrtllm_backend 0.16 to 0.21 and of TensorRT-LLM's tree after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from toolkit.errors import did_you_mean
from toolkit.serving.lint.repository import Finding, Model, Repository
from toolkit.serving.pbtxt import parameters_of

# Model -> parameter -> whether its code cannot do without it.
_PARAMETERS: Mapping[str, Mapping[str, bool]] = {
    "preprocessing": {
        "tokenizer_dir": True, "add_special_tokens": False, "max_num_images": False,
        "gpt_model_path": False, "multimodal_model_path": False, "visual_model_path": False,
        "hf_model_path": False, "tokenizer_type": False,
    },
    "postprocessing": {
        "tokenizer_dir": True, "skip_special_tokens": False, "tokenizer_type": False,
    },
    "tensorrt_llm_bls": {
        "tensorrt_llm_model_name": False, "tensorrt_llm_draft_model_name": False,
        "multimodal_encoders_name": False, "accumulate_tokens": False,
    },
}  # fmt: skip
_MODEL, _DRAFT = "tensorrt_llm_model_name", "tensorrt_llm_draft_model_name"


def check_upstream(repository: Repository) -> Iterator[Finding]:
    for model in repository.parsed:
        if model.name in _PARAMETERS and not model.ours:
            yield from _check_parameters(model, _PARAMETERS[model.name])
        if _DRAFT in model.parameters and not model.ours:
            yield from _check_loop(repository, model)
        if model.config.platform == "ensemble":
            yield from _check_streams(repository, model, _steps(model))
        elif _MODEL in model.parameters and not model.ours:
            yield from _check_streams(repository, model, [model.parameters[_MODEL]])


def _check_parameters(model: Model, known: Mapping[str, bool]) -> Iterator[Finding]:
    given = parameters_of(model.config)
    if not set(given) & set(known):
        return  # somebody else's model of the same name
    for name in given:
        if name not in known and (hint := did_you_mean(name, known)):
            yield model.error(f"parameter {name!r}: {model.name} reads no such{hint}", name)
    for name, required in known.items():
        if required and name not in model.parameters:
            yield model.error(f"parameter {name!r} is missing or empty")
    place = model.parameters.get("tokenizer_dir", "")
    if place.startswith("/") and not Path(place).is_dir():
        yield model.error(f"parameter 'tokenizer_dir': {place} is not there", "tokenizer_dir")


def _check_loop(repository: Repository, bls: Model) -> Iterator[Finding]:
    """What NVIDIA's loop over target and draft does not do, or never ends with."""
    yield bls.warning(
        "NVIDIA's loop neither streams while it speculates nor takes several requests at once; "
        "spectool repo writes one that does",
        _DRAFT,
    )
    for name in (bls.parameters.get(_MODEL, "tensorrt_llm"), bls.parameters[_DRAFT]):
        called = repository.models.get(name)
        if called and called.parameters.get("exclude_input_in_output", "").lower() == "true":
            yield called.error(
                f"parameter 'exclude_input_in_output': true, with which the loop of {bls.name} "
                "loses the prompt after its first step and does not end (before TensorRT-LLM's "
                "change 9453); set it to false",
                "exclude_input_in_output",
            )


def _check_streams(repository: Repository, model: Model, called: list[str]) -> Iterator[Finding]:
    """A client that asks for a stream gets none from an LLM that gives one response."""
    if not any(tensor.name in ("stream", "streaming") for tensor in model.config.input):
        return
    for name in called:
        llm = repository.models.get(name)
        if llm is None or llm.config.model_transaction_policy.decoupled:
            continue
        if any(tensor.name == "streaming" for tensor in llm.config.input):
            yield model.warning(
                f"requests may ask for a stream, but {name} gives one response to a request: its "
                "model_transaction_policy is not decoupled",
                "stream",
            )


def _steps(ensemble: Model) -> list[str]:
    """Models whose `streaming` the ensemble sets."""
    return [
        step.model_name
        for step in ensemble.config.ensemble_scheduling.step
        if "streaming" in step.input_map
    ]
