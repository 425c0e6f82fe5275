"""Heads that draft token after token from a state: EAGLE in all its versions.

Training-time test (EAGLE-3; HASS has it for EAGLE-2): at depth d the head reads its own output of
depth d - 1 where the target's states are not known yet, and attends to the keys and values that a
real draft has in its cache: the target's states up to the start of the draft, its own behind it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolkit.training.batches import Batch
from toolkit.training.decoder import Rotary, attend, heads, linear, mlp, rms_norm
from toolkit.training.published import PublishedKind

if TYPE_CHECKING:
    import torch

    from toolkit.training.head import Params


class ChainHead(PublishedKind):
    """One decoder layer on a token's embedding and the state before it."""

    layer: str  # what the layer's weights are called

    @abstractmethod
    def first(self, params: Params, batch: Batch) -> torch.Tensor:
        """The target's states as the head reads them: [B, T, H]."""

    @abstractmethod
    def join(
        self, params: Params, embedded: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention reads, and the residual stream that it is added to: [B, L, .]."""

    @abstractmethod
    def said(self, params: Params, state: torch.Tensor) -> torch.Tensor:
        """What goes to lm_head."""

    def states(self, params: Params, batch: Batch, depth: int) -> Iterator[torch.Tensor]:
        import torch

        s = self.settings
        rotary = Rotary(s, self.device)
        embedded = self.embedding[batch.tokens[:, 1:]]  # [B, T - 1, H]
        state = self.first(params, batch)[:, :-1]
        everywhere = torch.arange(state.shape[1], device=state.device).expand(len(state), -1)
        inputs, _ = self.join(params, embedded, state)
        past = self._keys_values(params, inputs, everywhere, rotary)
        embedded, state = batch.at(embedded), batch.at(state)  # [B, R, H]
        own: list[tuple[torch.Tensor, torch.Tensor]] = []
        for d in range(depth):
            inputs, residual = self.join(params, embedded, state)
            if d:
                own.append(self._keys_values(params, inputs, batch.position, rotary))
            q = heads(linear(inputs, params, self.layer + "self_attn.q_proj"), s.head_size)
            mask = everywhere[:, None, :] <= (batch.position - d)[..., None]
            # Of the token that was drafted i steps before this one: it stands i rows earlier.
            back = [
                (later(k, d - 1 - i, 2), later(v, d - 1 - i, 2)) for i, (k, v) in enumerate(own)
            ]
            y = attend(rotary(q, batch.position), past, mask, back)
            x = residual + self.drop(linear(y, params, self.layer + "self_attn.o_proj"))
            norm = params[self.layer + "post_attention_layernorm.weight"]
            x = x + self.drop(mlp(rms_norm(x, norm, s.norm_epsilon), params, self.layer))
            yield self.said(params, x)
            state = later(x, 1, 1)

    def _keys_values(
        self, params: Params, inputs: torch.Tensor, position: torch.Tensor, rotary: Rotary
    ) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.settings.head_size
        k = heads(linear(inputs, params, self.layer + "self_attn.k_proj"), size)
        v = heads(linear(inputs, params, self.layer + "self_attn.v_proj"), size)
        return rotary(k, position), v


def later(x: torch.Tensor, rows: int, dim: int) -> torch.Tensor:
    """Row r gets what stood at row r - `rows`; zeros come in at the front."""
    import torch

    if rows == 0:
        return x
    front = torch.zeros_like(x.narrow(dim, 0, min(rows, x.shape[dim])))
    return torch.cat([front, x.narrow(dim, 0, max(0, x.shape[dim] - rows))], dim)
