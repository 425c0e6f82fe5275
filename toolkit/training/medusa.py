"""Medusa (Cai et al. 2024): residual layers per head on the target's final state, all in one go.

    {h}.{l}.linear.weight|bias  residual layer l of head h: x + silu(linear(x)), first the identity
    {h}.{layers}.weight         the head's lm_head, in the published layout only
    d2t [D]                     with lm_head shared: the tokens that heads say, as EAGLE-3 has it

A vocabulary matrix for each head is the bulk of published heads. Here heads may share the target's
own, over the tokens that matter: a file of a hundredth of the size, which the cpu backend reads.
The published layout then repeats the target's matrix for each head. Training that goes on from
heads with matrices of their own keeps those as they are, and learns the residual layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.interfaces import Source
from toolkit.engine.heads.medusa import read_form
from toolkit.training.batches import Batch
from toolkit.training.decoder import linear
from toolkit.training.head import HeadOptions, d2t
from toolkit.training.published import (
    PublishedKind,
    float32,
    option_problems,
    vocabulary_problem,
)
from toolkit.training.target import Target

if TYPE_CHECKING:
    import torch

    from toolkit.training.head import Params


HEADS, HEAD_LAYERS = 4, 1  # unless somebody says otherwise


class MedusaHeads(PublishedKind):
    """Head h says the token h + 2 places behind the state that it reads."""

    def __init__(
        self, target: Target, options: HeadOptions, ids: NDArray[np.int64], device: str = "cpu"
    ) -> None:
        super().__init__(target, options, ids, device)
        self.count, self.layers = options.heads or HEADS, options.head_layers or HEAD_LAYERS
        self.own: list[torch.Tensor] = []  # [V, H] each: lm_heads that are not the target's

    @classmethod
    def problems(cls, head: Source, target: Mapping[str, Any], options: HeadOptions) -> list[str]:
        form, found = read_form(head, target)
        if not form.count:
            return found
        asked = {"--heads": options.heads, "--head-layers": options.head_layers}
        found += option_problems(asked, {"--heads": form.count, "--head-layers": form.layers})
        return found + vocabulary_problem(options.draft_vocab, len(form.ids))

    def read(self, head: Source) -> Params:
        form, _ = read_form(head, self.target.config)
        self.count, self.layers = form.count, form.layers
        self.options = replace(
            self.options, heads=self.count, head_layers=self.layers, draft_vocab=len(form.ids)
        )
        self.choose(form.ids)
        self.fixed_vocabulary = True
        if not form.shared:
            names = (f"{form.prefix}{h}.{form.layers}.weight" for h in range(form.count))
            self.own = [float32(head, name).to(self.device) for name in names]
        return {name: float32(head, form.prefix + name) for name in self._names()}

    def _names(self) -> Iterator[str]:
        for h in range(self.count):
            for layer in range(self.layers):
                yield f"{h}.{layer}.linear.weight"
                yield f"{h}.{layer}.linear.bias"

    def start(self) -> Params:
        import torch

        self.options = replace(self.options, heads=self.count, head_layers=self.layers)
        hidden = self.target.settings.hidden_size
        shapes = {"weight": (hidden, hidden), "bias": (hidden,)}
        return {
            name: torch.zeros(shapes[name.rpartition(".")[2]], device=self.device)
            for name in self._names()
        }

    @property
    def depth(self) -> int:
        return self.count

    def states(self, params: Params, batch: Batch, depth: int) -> Iterator[torch.Tensor]:
        from torch.nn import functional

        for h in range(depth):
            x = batch.at(batch.final, -h)
            for layer in range(self.layers):
                x = x + functional.silu(linear(x, params, f"{h}.{layer}.linear"))
            yield x

    def lm_head(self, params: Params, depth: int) -> torch.Tensor:
        return self.own[depth] if self.own else self.teacher

    def files(self, params: Params) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        import torch

        s = self.target.settings
        config = {
            "medusa_num_heads": self.count,
            "medusa_num_layers": self.layers,
            "hidden_size": s.hidden_size,
            "vocab_size": s.vocab_size,
        }
        if self.own or self.options.full_lm_head:
            own = self.own or [self.target.lm_head] * self.count
            named = {f"{h}.{self.layers}.weight": matrix.cpu() for h, matrix in enumerate(own)}
            return params | named, config
        ids = self.ids.cpu().numpy()
        tensors = {**params, "d2t": torch.from_numpy(d2t(ids))}
        return tensors, {**config, "draft_vocab_size": len(ids), "shared_lm_head": True}
