"""EAGLE-1 and EAGLE-2 (Li et al. 2024): one layer foretells the target's next final state.

Its output goes through the target's own lm_head, so that nothing of a vocabulary is trained. Most
of the loss is the distance to the state that the target computed (smooth L1; the cross-entropy
counts a tenth, as in the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.checkpoint.heads.eagle import file_prefix
from toolkit.checkpoint.interfaces import Source
from toolkit.engine.heads.eagle import layer_config, plan_head
from toolkit.engine.settings import decoder_settings
from toolkit.training.batches import Batch
from toolkit.training.chain import ChainHead
from toolkit.training.decoder import linear
from toolkit.training.head import HeadOptions, noise, settings_config
from toolkit.training.published import activation_problem, float32

if TYPE_CHECKING:
    import torch

    from toolkit.training.head import Params

LAYER = "layers.0."


class EagleHead(ChainHead):
    """fc over embedding and final state; the layer reads what fc gives without a norm."""

    layer = LAYER
    cross_entropy = 0.1

    @classmethod
    def problems(cls, head: Source, target: Mapping[str, Any], options: HeadOptions) -> list[str]:
        plan, found = plan_head(head, target)
        if not plan.config:
            return found
        layers = plan.config["eagle_net_config"]["num_hidden_layers"]
        if layers != 1:
            found.append(f"config.json: num_hidden_layers is {layers}; training knows one layer")
        return found + activation_problem(target.get("hidden_act"))

    def read(self, head: Source) -> Params:
        """Its output goes through the target's lm_head: --draft-vocab is what training compares."""
        plan, _ = plan_head(head, self.target.config)
        layer = layer_config(plan, self.target.config)
        s = self.settings = decoder_settings(layer, head.name)
        self.config = {
            "num_attention_heads": s.num_heads,
            "num_key_value_heads": s.num_kv_heads,
            "head_dim": s.head_size,
            "intermediate_size": s.intermediate_size,
            "rms_norm_eps": s.norm_epsilon,
        }
        prefix = file_prefix(head)
        names = {part.source for part in plan.tensors} & set(head.tensors)
        params = {name.removeprefix(prefix): float32(head, name) for name in sorted(names)}
        if "embed_tokens.weight" in params:
            self.embedding = params.pop("embed_tokens.weight").to(self.device)
        return params

    def start(self) -> Params:
        """The layer is the target's last one; fc begins by passing on the state."""
        import torch

        s = self.target.settings
        hidden, draw = s.hidden_size, torch.Generator().manual_seed(self.options.seed)
        fc = noise(draw, hidden, 2 * hidden, scale=0.1)
        fc[:, hidden:] += torch.eye(hidden)
        params = {"fc.weight": fc}
        for name, tensor in self.target.layer(s.num_layers - 1).items():
            if name != "input_layernorm.weight":
                params[LAYER + name] = tensor.clone()
        return {name: tensor.to(self.device) for name, tensor in params.items()}

    def first(self, params: Params, batch: Batch) -> torch.Tensor:
        return batch.final

    def join(
        self, params: Params, embedded: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        joined = linear(torch.cat([embedded, state], -1), params, "fc")
        return joined, joined

    def said(self, params: Params, state: torch.Tensor) -> torch.Tensor:
        return state

    def lm_head(self, params: Params, depth: int) -> torch.Tensor:
        return self.teacher

    def extra_loss(self, state: torch.Tensor, batch: Batch) -> torch.Tensor:
        from torch.nn import functional

        wanted = batch.at(batch.final, 1)
        return functional.smooth_l1_loss(state, wanted, reduction="none").mean(-1)

    def files(self, params: Params) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors = {**params, "embed_tokens.weight": self.embedding.cpu()}
        return tensors, dict(settings_config(self, bias="fc.bias" in params))
