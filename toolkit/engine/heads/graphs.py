"""Decoder graphs of heads: each token comes with a feature of the text before it.

Shapes as in engine/graph.py; h is the head's hidden size, D its vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from toolkit.engine.graph import LAYER, DecoderGraph


class FeatureGraph(DecoderGraph, ABC):
    """(token, feature) -> logits [R, D] of the wanted rows and the next features [S, h] of all."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        size = self.settings.hidden_size
        self.features = self._input("features", [-1, -1, size], np.float32)  # [B, S, h]

    def model(self) -> Any:
        op = self.op
        embedded = op.gather(self.weights.embedding(), self.ids, self.zero)  # [B, S, h]
        hidden = self._flat(self._features(embedded))
        final = self._final(op.gather(hidden, self.rows, self.zero))  # [R, h]
        logits = op.matmul(final, self.weights.lm_head(None), False, True)
        return self._whole(logits, hidden, self.features)

    @abstractmethod
    def _features(self, embedded: Any) -> Any:
        """The next features [B, S, h], from the embedding of each token and the given features."""

    def _final(self, x: Any) -> Any:
        return x


class Eagle3Graph(FeatureGraph):
    """EAGLE-3's only layer attends over embedding and feature side by side, each with its norm.

    Its residual is the feature as it came (Li et al. 2025; eagle/model/cnets.py upstream).
    """

    def _features(self, embedded: Any) -> Any:
        op, layer = self.op, LAYER.format(i=0)
        both = op.concat(
            [
                self._norm(embedded, layer + "input_layernorm.weight"),
                self._norm(self.features, layer + "hidden_norm.weight"),
            ],
            2,
        )
        x = op.add(self.features, self._attention(both, 0))
        return op.add(x, self._mlp(self._norm(x, layer + "post_layernorm.weight"), layer + "mlp."))

    def _final(self, x: Any) -> Any:
        return self._norm(x, "transformer.ln_f.weight")


class EagleGraph(FeatureGraph):
    """EAGLE-1 and EAGLE-2: `fc` joins embedding and feature; no norm before the first layer, and
    none before the target's lm_head (Li et al. 2024)."""

    def _features(self, embedded: Any) -> Any:
        op = self.op
        x = self._linear(op.concat([embedded, self.features], 2), "fc")
        for i in range(self.settings.num_layers):
            layer = LAYER.format(i=i)
            inner = self._norm(x, layer + "input_layernorm.weight") if i else x
            x = op.add(x, self._attention(inner, i))
            inner = self._norm(x, layer + "post_layernorm.weight")
            x = op.add(x, self._mlp(inner, layer + "mlp."))
        return x
