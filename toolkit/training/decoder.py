"""Llama's pieces in torch, as functions of named weights.

B sequences, R rows, T keys, N heads, G key/value heads, D head size, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from toolkit.engine.settings import DecoderSettings
from toolkit.optional import require

if TYPE_CHECKING:
    import torch

    Params = Mapping[str, torch.Tensor]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """In float32, whatever the rest is computed in."""
    from torch.nn import functional

    return functional.rms_norm(x.float(), (x.shape[-1],), weight, epsilon)


def linear(x: torch.Tensor, params: Params, name: str) -> torch.Tensor:
    from torch.nn import functional

    return functional.linear(x, params[name + ".weight"], params.get(name + ".bias"))


def mlp(x: torch.Tensor, params: Params, layer: str) -> torch.Tensor:
    """SwiGLU."""
    from torch.nn import functional

    gate = functional.silu(linear(x, params, layer + "mlp.gate_proj"))
    return linear(gate * linear(x, params, layer + "mlp.up_proj"), params, layer + "mlp.down_proj")


class Rotary:
    """Rotary embedding with the target's frequencies."""

    def __init__(self, settings: DecoderSettings, device: str = "cpu") -> None:
        torch = require("torch", extra="train", why="training")
        self._inv_freq = torch.tensor(settings.inv_freq, dtype=torch.float32, device=device)

    def __call__(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """[B, heads, L, D] turned by positions [B, L]."""
        import torch

        angles = position.float()[:, None, :, None] * self._inv_freq  # [B, 1, L, D / 2]
        cos = torch.cat([angles.cos()] * 2, -1)
        sin = torch.cat([angles.sin()] * 2, -1)
        first, last = x.chunk(2, -1)
        return x * cos + torch.cat([-last, first], -1) * sin


def heads(x: torch.Tensor, head_size: int) -> torch.Tensor:
    """[B, L, heads * D] -> [B, heads, L, D]."""
    return x.reshape(*x.shape[:-1], -1, head_size).transpose(1, 2)


def attend(
    q: torch.Tensor,  # [B, N, R, D]
    past: tuple[torch.Tensor, torch.Tensor],  # keys and values [B, G, T, D]
    mask: torch.Tensor,  # [B, R, T]: which of them a row may look at
    own: Sequence[tuple[torch.Tensor, torch.Tensor]],  # one more key and value for each row
) -> torch.Tensor:  # [B, R, N * D]
    """Attention over the past and over what each row drafted itself: [B, G, R, D] of `own`."""
    import torch

    keys, values = past
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = q @ keys.transpose(-1, -2)
    scores = scores.masked_fill(~mask[:, None], float("-inf"))
    drafted = [(k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)) for k, v in own]
    single = [(q * k).sum(-1, keepdim=True) for k, _ in drafted]
    weights = torch.softmax(torch.cat([scores, *single], -1) * q.shape[-1] ** -0.5, -1)
    out = weights[..., : keys.shape[2]] @ values
    for i, (_, v) in enumerate(drafted):
        at = keys.shape[2] + i
        out = out + weights[..., at : at + 1] * v
    return out.transpose(1, 2).flatten(2)
