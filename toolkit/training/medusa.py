"""Medusa (Cai et al. 2024): residual layers per head on the target's final state, all in one go.

    {h}.{l}.linear.weight|bias  residual layer l of head h: x + silu(linear(x)), first the identity
    {h}.{layers}.weight         the head's lm_head, in the published layout only
    d2t [D]                     with lm_head shared: the tokens that heads say, as EAGLE-3 has it

A vocabulary matrix for each head is the bulk of published heads. Here heads may share the target's
own, over the tokens that matter: a file of a hundredth of the size, which the cpu backend reads.
The published layout then repeats the target's matrix for each head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toolkit.training.batches import Batch
from toolkit.training.decoder import linear
from toolkit.training.head import HeadKind, d2t

if TYPE_CHECKING:
    import torch

    from toolkit.training.head import Params


class MedusaHeads(HeadKind):
    """Head h says the token h + 2 places behind the state that it reads."""

    def start(self) -> Params:
        import torch

        hidden = self.target.settings.hidden_size
        params: Params = {}
        for h in range(self.options.heads):
            for layer in range(self.options.head_layers):
                params[f"{h}.{layer}.linear.weight"] = torch.zeros(hidden, hidden)
                params[f"{h}.{layer}.linear.bias"] = torch.zeros(hidden)
        return {name: tensor.to(self.device) for name, tensor in params.items()}

    @property
    def depth(self) -> int:
        return self.options.heads

    def states(self, params: Params, batch: Batch, depth: int) -> Iterator[torch.Tensor]:
        from torch.nn import functional

        for h in range(depth):
            x = batch.at(batch.final, -h)
            for layer in range(self.options.head_layers):
                x = x + functional.silu(linear(x, params, f"{h}.{layer}.linear"))
            yield x

    def lm_head(self, params: Params, depth: int) -> torch.Tensor:
        return self.teacher

    def files(self, params: Params) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        import torch

        options, s = self.options, self.target.settings
        config = {
            "medusa_num_heads": options.heads,
            "medusa_num_layers": options.head_layers,
            "hidden_size": s.hidden_size,
            "vocab_size": s.vocab_size,
        }
        if options.full_lm_head:
            own = {f"{h}.{options.head_layers}.weight" for h in range(options.heads)}
            return params | dict.fromkeys(own, self.target.lm_head), config
        ids = self.ids.cpu().numpy()
        tensors = {**params, "d2t": torch.from_numpy(d2t(ids))}
        return tensors, {**config, "draft_vocab_size": len(ids), "shared_lm_head": True}
