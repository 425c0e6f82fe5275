"""Rules for ensembles: every tensor has one source, and both its ends agree about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from toolkit.errors import did_you_mean
from toolkit.serving.lint.repository import Finding, Model, Repository
from toolkit.serving.pbtxt import dtype_name


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a tensor of an ensemble: who has it, and what it says that it is."""

    owner: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = False

    def agrees(self, other: _End) -> bool:
        same_rank = len(self.dims) == len(other.dims)
        return same_rank and all(
            -1 in pair or pair[0] == pair[1] for pair in zip(self.dims, other.dims, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.dims)} in {self.owner}"


def check_ensemble(repository: Repository) -> Iterator[Finding]:
    for model in repository.parsed:
        if model.config.platform == "ensemble":
            yield from _check(model, repository)


def _check(ensemble: Model, repository: Repository) -> Iterator[Finding]:
    steps = list(ensemble.config.ensemble_scheduling.step)
    if not steps:
        yield ensemble.error("ensemble_scheduling has no steps")
    sources = {t.name: _end(ensemble, t) for t in ensemble.config.input}
    used: set[str] = set()
    # Two passes, because a step may stand before the one that feeds it.
    for number, step in enumerate(steps, 1):
        yield from _check_step_model(ensemble, repository, number, step)
        yield from _check_outputs(ensemble, repository, number, step, sources)
    for number, step in enumerate(steps, 1):
        yield from _check_inputs(ensemble, repository, number, step, sources)
        used |= set(step.input_map.values())
    for tensor in ensemble.config.output:
        end = _end(ensemble, tensor)
        yield from _check_ends(ensemble, tensor.name, sources.get(tensor.name), end)
    for tensor in ensemble.config.input:
        if tensor.name not in used:
            yield ensemble.warning(f"input {tensor.name!r} goes nowhere", tensor.name)
    yield from _check_order(ensemble, steps)


def _check_step_model(
    ensemble: Model, repository: Repository, number: int, step: Any
) -> Iterator[Finding]:
    name = step.model_name
    if name not in repository.models:
        yield ensemble.error(f"step {number}: {repository.unknown(name)}", name)
        return
    model = repository.models[name]
    if model is None:
        return
    if step.model_version not in (-1, *model.versions):
        yield ensemble.error(f"step {number}: {name} has no version {step.model_version}", name)
    size = model.config.max_batch_size
    if ensemble.config.max_batch_size > size:
        yield ensemble.error(
            f"max_batch_size: {ensemble.config.max_batch_size}, but {name} takes at most {size}"
        )


def _check_outputs(
    ensemble: Model, repository: Repository, number: int, step: Any, sources: dict[str, _End]
) -> Iterator[Finding]:
    """Also enters the step's outputs into `sources`."""
    model = repository.models.get(step.model_name)
    outputs = {t.name: t for t in model.config.output} if model else {}
    for name, tensor in step.output_map.items():
        where = f"step {number}, output_map"
        if model and name not in outputs:
            hint = did_you_mean(name, outputs)
            yield ensemble.error(f"{where}: {model.name} has no output {name!r}{hint}", name)
        if tensor in sources:
            yield ensemble.error(
                f"{where}: {tensor!r} comes from {sources[tensor].owner} already", tensor
            )
        elif model and name in outputs:
            sources[tensor] = _end(model, outputs[name])
        else:
            sources[tensor] = _End(step.model_name, "", ())  # wrong already; not once more


def _check_inputs(
    ensemble: Model, repository: Repository, number: int, step: Any, sources: dict[str, _End]
) -> Iterator[Finding]:
    model = repository.models.get(step.model_name)
    if model is None:
        return
    inputs = {t.name: t for t in model.config.input}
    where = f"step {number}, input_map"
    for name, tensor in step.input_map.items():
        if name not in inputs:
            hint = did_you_mean(name, inputs)
            yield ensemble.error(f"{where}: {model.name} has no input {name!r}{hint}", name)
            continue
        yield from _check_ends(ensemble, tensor, sources.get(tensor), _end(model, inputs[name]))
    for name, tensor in inputs.items():
        if name not in step.input_map and not tensor.optional:
            yield ensemble.error(f"{where}: {model.name} needs {name!r}, which is not mapped")


def _check_ends(ensemble: Model, tensor: str, source: _End | None, sink: _End) -> Iterator[Finding]:
    if source is None:
        yield ensemble.error(f"{tensor!r}, wanted by {sink.owner}, comes from nowhere", tensor)
    elif source.dtype and (source.dtype != sink.dtype or not source.agrees(sink)):
        yield ensemble.error(f"{tensor!r} is {source}, but {sink}", tensor)
    elif source.optional and not sink.optional and source.owner == ensemble.name:
        yield ensemble.error(f"{tensor!r} may be left out, but {sink.owner} needs it", tensor)


def _check_order(ensemble: Model, steps: list[Any]) -> Iterator[Finding]:
    """Steps that wait for each other never start."""
    have = {tensor.name for tensor in ensemble.config.input}
    made = {tensor for step in steps for tensor in step.output_map.values()}
    left = list(enumerate(steps, 1))
    while ready := [(n, s) for n, s in left if set(s.input_map.values()) & made <= have]:
        have |= {tensor for _, step in ready for tensor in step.output_map.values()}
        left = [pair for pair in left if pair not in ready]
    if left:
        numbers = ", ".join(str(number) for number, _ in left)
        yield ensemble.error(f"steps {numbers} wait for each other's outputs")


def _end(model: Model, tensor: Any) -> _End:
    """With the batch dimension, which is what an ensemble compares."""
    batch = (-1,) if model.config.max_batch_size > 0 else ()
    optional = getattr(tensor, "optional", False)
    return _End(model.name, dtype_name(tensor.data_type), (*batch, *tensor.dims), optional)
