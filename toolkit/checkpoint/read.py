"""A TensorRT-LLM checkpoint read back: ranks joined, padding cut, layers counted from 0 again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.config import sizes
from toolkit.checkpoint.families.family import Family, Place
from toolkit.checkpoint.safetensors_file import Span, read_header, read_rows
from toolkit.checkpoint.split import shard, split_of
from toolkit.errors import CheckpointError, UnknownNameError
from toolkit.registry import FAMILIES

_LAYER = re.compile(r"^transformer\.layers\.(\d+)\.")
# What quantisation changes: matrices of the layers.
MATRIX = re.compile(r"\.(qkv|dense|fc|gate|proj)\.weight$")
EMBEDDING, LM_HEAD = "transformer.vocab_embedding.weight", "lm_head.weight"
D2T = "d2t"  # of a model that says some tokens only
FLOATS = ("float16", "bfloat16", "float32")


def is_float(span: Span) -> bool:
    """Whether a tensor holds its values themselves; anything else needs scales."""
    return span.dtype.name in FLOATS


class Checkpoint:
    """Whole tensors by TensorRT-LLM name, e.g. `transformer.layers.17.mlp.fc.weight`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = _config(directory)
        self.architecture: str = self.config["architecture"]
        mapping = self.config["mapping"]
        self._tp, self._pp = int(mapping.get("tp_size", 1)), int(mapping.get("pp_size", 1))
        self._family = self._find_family()
        self._files = [directory / f"rank{rank}.safetensors" for rank in range(self._tp * self._pp)]
        missing = [f"{file.name}: missing" for file in self._files if not file.is_file()]
        if missing:
            raise CheckpointError(str(directory), missing)
        self._ranks = [read_header(file) for file in self._files]
        self._first_layer = self._count_layers()
        self._parts: dict[str, list[Place]] = {}
        for place in self._family.weights.values():
            if place and (not place.when or self.config.get(place.when)):
                self._parts.setdefault(place.name, []).append(place)

    def names(self) -> Iterator[str]:
        """Every tensor that the family's tables know, layer by layer."""
        for pattern in self._parts:
            layers = range(self.config["num_hidden_layers"]) if "{i}" in pattern else [0]
            yield from (pattern.format(i=layer) for layer in layers)

    def tensor(self, name: str) -> NDArray[Any]:
        """The whole tensor, as if it had never been split."""
        if self._is_shared(name):
            name = EMBEDDING
        stage, local = self._locate(name)
        pattern = _LAYER.sub("transformer.layers.{i}.", name)
        if pattern not in self._parts:
            raise CheckpointError(str(self.directory), [f"{name}: not in this architecture"])
        whole = [self._empty(place) for place in self._parts[pattern]]
        for rank in range(self._tp):
            self._fill(whole, self._parts[pattern], rank, self._read(stage, rank, local))
        return whole[0] if len(whole) == 1 else np.concatenate(whole)

    def problems(self) -> Iterator[str]:
        """Tensors that are missing, or not as config.json says; quantised ones only missing."""
        for name in self.names():
            stage, local = self._locate(name)
            for index in range(stage * self._tp, (stage + 1) * self._tp):
                span = self._ranks[index].get(local)
                if span is None:
                    if not self._is_shared(name):
                        yield f"{self._files[index].name}: {local}: missing"
                elif (is_float(span) or not MATRIX.search(name)) and (
                    problem := self._problem(index, local, span)
                ):
                    yield f"{self._files[index].name}: {problem}"

    def _is_shared(self, name: str) -> bool:
        """Writers may leave out lm_head where it is the embedding."""
        return name == LM_HEAD and LM_HEAD not in self._ranks[-1] and EMBEDDING in self._ranks[0]

    def _empty(self, place: Place) -> NDArray[Any]:
        words = sizes(self.config)
        return np.empty([words[word] for word in place.shape], self._dtype(place))

    def _dtype(self, place: Place) -> np.dtype[Any]:
        return np.dtype(place.dtype or self.config["dtype"])

    def _fill(
        self, whole: list[NDArray[Any]], places: list[Place], rank: int, held: NDArray[Any]
    ) -> None:
        """Copy what one rank holds of every part to where it belongs."""
        at = 0
        kv_heads = self.config["num_key_value_heads"]
        for place, part in zip(places, whole, strict=True):
            split = split_of(place, self.config)
            mine = shard(split, part.shape, self._tp, rank, kv_heads=kv_heads)
            rows = held[at : at + mine.stop - mine.start]
            if part.ndim == 1:
                part[mine.start : mine.stop] = rows
            else:
                part[mine.start : mine.stop, mine.left : mine.right] = rows
            at += mine.rows

    def _read(self, stage: int, rank: int, local: str) -> NDArray[Any]:
        index = stage * self._tp + rank
        span = self._ranks[index].get(local)
        if span is None:
            raise CheckpointError(str(self._files[index]), [f"{local}: missing"])
        self._check(index, local, span)
        return read_rows(self._files[index], span)

    def _check(self, index: int, local: str, span: Span) -> None:
        if MATRIX.search(local) and not is_float(span):
            raise CheckpointError(
                str(self._files[index]),
                [
                    f"{local}: {span.dtype.name}, quantised already; backend cpu reads floating "
                    "point weights: take the checkpoint before it was quantised (with w8a16, they "
                    "are quantised here)"
                ],
            )
        if problem := self._problem(index, local, span):
            raise CheckpointError(str(self._files[index]), [problem])

    def _problem(self, index: int, local: str, span: Span) -> str | None:
        places = self._parts[_LAYER.sub("transformer.layers.{i}.", local)]
        words, kv_heads = sizes(self.config), self.config["num_key_value_heads"]
        shape: tuple[int, ...] = ()
        rows = 0
        for place in places:
            full = tuple(words[word] for word in place.shape)
            split = split_of(place, self.config)
            mine = shard(split, full, self._tp, index % self._tp, kv_heads=kv_heads)
            rows += mine.rows
            shape = (rows, mine.right - mine.left)[: len(full)]
        dtype = self._dtype(places[0])
        if span.shape == shape and span.dtype == dtype:
            return None
        return (
            f"{local}: {span.dtype.name} {list(span.shape)}, expected "
            f"{dtype.name} {list(shape)} by config.json"
        )

    def _locate(self, name: str) -> tuple[int, str]:
        """(pipeline stage, name in its files)."""
        found = _LAYER.match(name)
        if not found:
            places = self._parts.get(name)
            return (0 if places and places[0].first else self._pp - 1), name
        layer = int(found[1])
        stage = max(s for s, first in enumerate(self._first_layer) if first <= layer)
        local = layer - self._first_layer[stage]
        return stage, _LAYER.sub(f"transformer.layers.{local}.", name)

    def _count_layers(self) -> list[int]:
        """First layer of every stage, counted: releases cut uneven stages differently."""
        first = [0]
        for stage in range(self._pp):
            names = map(_LAYER.match, self._ranks[stage * self._tp])
            first.append(first[-1] + len({found[1] for found in names if found}))
        if first[-1] != self.config["num_hidden_layers"]:
            raise CheckpointError(
                str(self.directory),
                [f"has {first[-1]} layers, config.json says {self.config['num_hidden_layers']}"],
            )
        return first[:-1]

    def _find_family(self) -> Family:
        try:
            family: Family = FAMILIES[self.architecture]
        except UnknownNameError as error:
            raise CheckpointError(str(self.directory), [f"config.json: {error}"]) from None
        return family


def _config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(str(directory), ["config.json: missing"]) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(str(directory), [f"config.json: not readable: {error}"]) from None
    needed = ("architecture", "dtype", "num_hidden_layers", "num_attention_heads", "hidden_size",
              "vocab_size", "intermediate_size")  # fmt: skip
    missing = [f"config.json: {key} is missing" for key in needed if key not in config]
    if missing:
        raise CheckpointError(str(directory), missing)
    config.setdefault("mapping", {})
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_size", config["hidden_size"] // config["num_attention_heads"])
    for key in ("attn_bias", "mlp_bias"):
        config.setdefault(key, False)
    return dict(config)
