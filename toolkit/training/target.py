"""What training takes from the target's TensorRT-LLM checkpoint: never the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.checkpoint.read import EMBEDDING, LM_HEAD, Checkpoint
from toolkit.engine.settings import DecoderSettings, decoder_settings
from toolkit.errors import CheckpointError
from toolkit.optional import require

if TYPE_CHECKING:
    import torch

_LAYER = "transformer.layers.{i}."


@dataclass(frozen=True)
class Target:
    """Frozen weights and sizes: V vocabulary, H hidden."""

    settings: DecoderSettings
    config: Mapping[str, Any]  # of the checkpoint
    embedding: torch.Tensor  # [V, H], scaled as the target scales it
    norm: torch.Tensor  # [H], before lm_head
    lm_head: torch.Tensor  # [V, H]
    checkpoint: Checkpoint

    def layer(self, i: int) -> dict[str, torch.Tensor]:
        """Decoder layer `i` by Hugging Face's names: what a head's layer may start from."""
        s, at = self.settings, _LAYER.format(i=i)
        heads = (s.num_heads * s.head_size, s.num_kv_heads * s.head_size)
        qkv = _tensor(self.checkpoint, at + "attention.qkv.weight")
        q, k, v = qkv[: heads[0]], qkv[heads[0] : -heads[1]], qkv[-heads[1] :]
        names = {
            "self_attn.o_proj.weight": "attention.dense.weight",
            "mlp.gate_proj.weight": "mlp.fc.weight",
            "mlp.up_proj.weight": "mlp.gate.weight",
            "mlp.down_proj.weight": "mlp.proj.weight",
            "input_layernorm.weight": "input_layernorm.weight",
            "post_attention_layernorm.weight": "post_layernorm.weight",
        }
        return {
            "self_attn.q_proj.weight": q,
            "self_attn.k_proj.weight": k,
            "self_attn.v_proj.weight": v,
            **{name: _tensor(self.checkpoint, at + source) for name, source in names.items()},
        }


def read_target(checkpoint_dir: Path) -> Target:
    """The matrices that every head needs, in float32."""
    require("torch", extra="train", why="training")
    checkpoint = Checkpoint(checkpoint_dir)
    if checkpoint.config.get("lm_head_rows"):
        raise CheckpointError(
            str(checkpoint_dir),
            ["says some of its tokens only (lm_head_rows): train for the whole model it came from"],
        )
    settings = decoder_settings(checkpoint.config, str(checkpoint_dir))
    return Target(
        settings=settings,
        config=checkpoint.config,
        embedding=_tensor(checkpoint, EMBEDDING) * settings.embedding_scale,
        norm=_tensor(checkpoint, "transformer.ln_f.weight"),
        lm_head=_tensor(checkpoint, LM_HEAD),
        checkpoint=checkpoint,
    )


def _tensor(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    import torch

    return torch.from_numpy(checkpoint.tensor(name).astype(np.float32))
