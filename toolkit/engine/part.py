"""Some layers of a checkpoint, to build an engine of and look at once: nothing is converted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from toolkit.checkpoint.read import Checkpoint

_LAYER = re.compile(r"^transformer\.layers\.(\d+)\.")


class PartOfCheckpoint:
    """A checkpoint as if it had only these layers, counted from 0 again."""

    def __init__(self, whole: Checkpoint, layers: tuple[int, ...]) -> None:
        self._whole = whole
        self._layers = layers
        self.directory = whole.directory
        self.config = {**whole.config, "num_hidden_layers": len(layers)}

    def names(self) -> Iterator[str]:
        numbers = {old: new for new, old in enumerate(self._layers)}
        for name in self._whole.names():
            found = _LAYER.match(name)
            if found is None:
                yield name
            elif (old := int(found[1])) in numbers:
                yield _LAYER.sub(f"transformer.layers.{numbers[old]}.", name)

    def tensor(self, name: str) -> NDArray[Any]:
        if found := _LAYER.match(name):
            old = self._layers[int(found[1])]
            name = _LAYER.sub(f"transformer.layers.{old}.", name)
        return self._whole.tensor(name)


def draft_cost(checkpoint: Checkpoint, layers: int) -> float:
    """Bytes that a step of so many layers reads, over those of the whole model: what decoding one
    token costs where memory is the limit."""
    config = checkpoint.config
    hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    size = int(config.get("head_size") or hidden // heads)
    layer = hidden * size * (2 * heads + 2 * kv_heads) + 3 * hidden * inner
    vocabulary = int(config["vocab_size"]) * hidden
    whole = int(config["num_hidden_layers"]) * layer + vocabulary
    return (layers * layer + vocabulary) / whole
