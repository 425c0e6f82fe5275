"""A source of Hugging Face tensors -> a TensorRT-LLM checkpoint directory.

The loop knows nothing of any architecture: names, shapes and cuts are the family's tables. All
tensors are checked before the first byte is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.checkpoint.config import checkpoint_config, family_of, sizes
from toolkit.checkpoint.drafts.vocabulary import vocabulary_problems
from toolkit.checkpoint.families.family import Family, Place
from toolkit.checkpoint.fp8 import FLOAT8, Float8Source
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.safetensors_file import shown
from toolkit.checkpoint.write import Part, write_ranks
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import ModelSpec

CONVERTER_VERSION = 1  # goes into digests: raise it when other bytes would be written

__all__ = ["CONVERTER_VERSION", "checkpoint_config", "convert"]
FLOATS = ("float16", "bfloat16", "float32", "float64")
_LAYER = re.compile(r"\.(0|[1-9][0-9]{0,5})\.")


def convert(source: Source, out: Path, spec: ModelSpec) -> None:
    """Write config.json and rank{r}.safetensors into `out`, a directory that nobody reads yet."""
    config = checkpoint_config(source.config, spec)
    tensors = placed(source, family_of(source.config, spec), config, spec)
    out.mkdir(parents=True, exist_ok=True)
    write_ranks(source, tensors, config, out)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class _Wanted:
    """One line of the family's table, for one layer."""

    pattern: str
    layer: int | None  # in the source
    name: str  # in the checkpoint, layers counted over the whole model
    place: Place
    shape: tuple[int, ...]

    @property
    def source(self) -> str:
        return self.pattern.replace("{i}", str(self.layer))

    @property
    def part(self) -> Part:
        return Part(self.source, self.place, self.shape, dtype=self.place.dtype)


def placed(
    source: Source, family: Family, config: Mapping[str, Any], spec: ModelSpec
) -> dict[str, list[Part]]:
    """TensorRT-LLM name -> its parts; or every problem of every tensor in one error."""
    dtypes = (*FLOATS, FLOAT8) if isinstance(source, Float8Source) else FLOATS
    problems: dict[tuple[str, str], list[int]] = {}
    tensors: dict[str, list[Part]] = {}
    for wanted in _wanted_of(source.config, family, config, spec):
        if problem := _problem(source, wanted, dtypes):
            _note(problems, wanted.pattern, wanted.layer, problem)
        tensors.setdefault(wanted.name, []).append(wanted.part)
    total = source.config["num_hidden_layers"]
    for name in source.tensors:
        pattern, layer = _pattern(name)
        if not _is_known(pattern, layer, family, config, total):
            _note(problems, pattern, layer, "unexpected; this architecture has no such tensor")
    found = [_say(*key, at) for key, at in problems.items()]
    if not found and config.get("lm_head_rows"):
        found = vocabulary_problems(source, config["lm_head_rows"], config["vocab_size"])
    if found:
        raise CheckpointError(source.name, found)
    return source.scaled(tensors) if isinstance(source, Float8Source) else tensors


def expected(
    source_config: Mapping[str, Any], family: Family, config: Mapping[str, Any], spec: ModelSpec
) -> dict[str, list[Part]]:
    """The same from config.json alone, for weights that are not here: nothing is checked."""
    tensors: dict[str, list[Part]] = {}
    for wanted in _wanted_of(source_config, family, config, spec):
        tensors.setdefault(wanted.name, []).append(wanted.part)
    return tensors


def _wanted_of(
    source_config: Mapping[str, Any], family: Family, config: Mapping[str, Any], spec: ModelSpec
) -> Iterator[_Wanted]:
    layers = spec.layers or tuple(range(config["num_hidden_layers"]))
    said = source_config.get("tie_word_embeddings")
    tied = bool(family.defaults["tie_word_embeddings"] if said is None else said)
    yield from _wanted(family, config, layers, tied)


def _wanted(
    family: Family, config: Mapping[str, Any], layers: tuple[int, ...], tied: bool
) -> Iterator[_Wanted]:
    words = sizes(config)
    table = [
        (pattern, place, tuple(words[word] for word in place.shape))
        for pattern, place in family.weights.items()
        if place is not None and not (place.when and not config.get(place.when))
    ]
    inside = [row for row in table if "{i}" in row[0]]
    outside = [row for row in table if "{i}" not in row[0]]
    # The order in which shards usually hold them: reading stays sequential.
    for pattern, place, shape in outside:
        if place.first:
            yield _Wanted(pattern, None, place.name, place, shape)
    for here, there in enumerate(layers):
        for pattern, place, shape in inside:
            yield _Wanted(pattern, there, place.name.format(i=here), place, shape)
    for pattern, place, shape in outside:
        if not place.first:
            name = place.tied_to if tied and place.tied_to else pattern
            yield _Wanted(name, None, place.name, place, shape)


def _problem(source: Source, wanted: _Wanted, dtypes: Sequence[str]) -> str | None:
    found = source.tensors.get(wanted.source)
    if found is None:
        return f"missing; expected shape {list(wanted.shape)}"
    if found.shape != wanted.shape:
        return f"has shape {list(found.shape)}, expected {list(wanted.shape)} by config.json"
    if wanted.place.dtype:
        return None  # whoever knows what the integers mean looks at them
    if found.dtype not in dtypes:
        return f"has dtype {found.dtype}, expected one of {', '.join(dtypes)}"
    return None


def _note(
    problems: dict[tuple[str, str], list[int]], pattern: str, layer: int | None, problem: str
) -> None:
    at = problems.setdefault((pattern, problem), [])
    if layer is not None:
        at.append(layer)


def _say(pattern: str, problem: str, layers: list[int]) -> str:
    """One line for the same problem in many layers: 80 of them hide what else is wrong."""
    pattern = shown(pattern)
    if len(layers) < 2:
        return f"{pattern.replace('{i}', str(layers[0])) if layers else pattern}: {problem}"
    numbers = sorted(set(layers))
    run = numbers == list(range(numbers[0], numbers[-1] + 1))
    which = f"{numbers[0]} to {numbers[-1]}" if run else ", ".join(map(str, numbers))
    return f"{pattern} (i = {which}): {problem}"


def _pattern(name: str) -> tuple[str, int | None]:
    layer = _LAYER.search(name)
    return (name.replace(layer[0], ".{i}.", 1), int(layer[1])) if layer else (name, None)


def _is_known(
    pattern: str, layer: int | None, family: Family, config: Mapping[str, Any], layers: int
) -> bool:
    if pattern not in family.weights or ("{i}" in pattern) != (layer is not None):
        return False
    if layer is not None and layer >= layers:
        return False
    place = family.weights[pattern]
    return place is None or not place.when or bool(config.get(place.when))
