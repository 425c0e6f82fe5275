"""A source of Hugging Face tensors -> a TensorRT-LLM checkpoint directory.

The loop knows nothing of any architecture: names, shapes and cuts are the family's tables. All
tensors are checked before the first byte is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.checkpoint.config import checkpoint_config, family_of, sizes
from toolkit.checkpoint.families.family import Family, Place
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.write import Part, write_ranks
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import ModelSpec

CONVERTER_VERSION = 1  # goes into digests: raise it when other bytes would be written

__all__ = ["CONVERTER_VERSION", "checkpoint_config", "convert"]
_FLOATS = ("float16", "bfloat16", "float32", "float64")
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

    source: str
    name: str
    place: Place
    shape: tuple[int, ...]


def placed(
    source: Source, family: Family, config: Mapping[str, Any], spec: ModelSpec
) -> dict[str, list[Part]]:
    """TensorRT-LLM name (layers counted over the whole model) -> its parts; or every problem."""
    layers = spec.layers or tuple(range(config["num_hidden_layers"]))
    tied = bool(source.config.get("tie_word_embeddings", family.defaults["tie_word_embeddings"]))
    problems: list[str] = []
    tensors: dict[str, list[Part]] = {}
    for wanted in _wanted(family, config, layers, tied):
        if problem := _problem(source, wanted):
            problems.append(problem)
        part = Part(wanted.source, wanted.place, wanted.shape)
        tensors.setdefault(wanted.name, []).append(part)
    problems += _unexpected(source, family, config)
    if problems:
        raise CheckpointError(source.name, problems)
    return tensors


def _wanted(
    family: Family, config: Mapping[str, Any], layers: tuple[int, ...], tied: bool
) -> Iterator[_Wanted]:
    words = sizes(config)
    table = [
        (hf_name, place, tuple(words[word] for word in place.shape))
        for hf_name, place in family.weights.items()
        if place is not None and not (place.when and not config[place.when])
    ]
    inside = [row for row in table if "{i}" in row[0]]
    outside = [row for row in table if "{i}" not in row[0]]
    # The order in which shards usually hold them: reading stays sequential.
    for hf_name, place, shape in outside:
        if place.first:
            yield _Wanted(hf_name, place.name, place, shape)
    for here, there in enumerate(layers):
        for hf_name, place, shape in inside:
            yield _Wanted(hf_name.format(i=there), place.name.format(i=here), place, shape)
    for hf_name, place, shape in outside:
        if not place.first:
            name = place.tied_to if tied and place.tied_to else hf_name
            yield _Wanted(name, place.name, place, shape)


def _problem(source: Source, wanted: _Wanted) -> str | None:
    found = source.tensors.get(wanted.source)
    if found is None:
        return f"{wanted.source}: missing; expected shape {list(wanted.shape)}"
    if found.shape != wanted.shape:
        return (
            f"{wanted.source}: has shape {list(found.shape)}, expected {list(wanted.shape)} "
            "by config.json"
        )
    if found.dtype not in _FLOATS:
        return f"{wanted.source}: has dtype {found.dtype}, expected one of {', '.join(_FLOATS)}"
    return None


def _unexpected(source: Source, family: Family, config: Mapping[str, Any]) -> list[str]:
    total = source.config["num_hidden_layers"]
    return [
        f"{name}: unexpected; this architecture has no such tensor"
        for name in source.tensors
        if not _is_known(name, family, config, total)
    ]


def _is_known(name: str, family: Family, config: Mapping[str, Any], layers: int) -> bool:
    layer = _LAYER.search(name)
    pattern = name.replace(layer[0], ".{i}.", 1) if layer else name
    if pattern not in family.weights or (layer and int(layer[1]) >= layers):
        return False
    place = family.weights[pattern]
    return place is None or not place.when or bool(config[place.when])
