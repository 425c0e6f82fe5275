"""A small draft model: some of the target's layers, taught to say what the whole target says.

Embedding, last norm and lm_head are the target's; the layers that are left learn to bridge those
that were taken out. Written as a Hugging Face checkpoint with the target's tokenizer, which every
backend converts like any other model.

In a small model of a large vocabulary, lm_head is most of the work of a draft token. With a reduced
vocabulary it has the rows of the most frequent tokens only, and `d2t` says which: see
checkpoint/drafts/vocabulary.py. Backend cpu alone reads such a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toolkit.errors import InputError
from toolkit.training.batches import Batch
from toolkit.training.decoder import Rotary, attend, heads, linear, mlp, rms_norm
from toolkit.training.head import HeadKind, d2t, settings_config

if TYPE_CHECKING:
    import torch

    from toolkit.training.head import Params

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")


def layer_problems(layers: tuple[int, ...], count: int) -> list[str]:
    """What is wrong with a choice of the target's `count` layers."""
    problems = []
    if not layers:
        problems.append("no layer is left; name at least one")
    if outside := [i for i in layers if not 0 <= i < count]:
        problems.append(f"{outside}: the target has layers 0 to {count - 1}")
    if len(set(layers)) < len(layers):
        problems.append(f"{list(layers)}: names a layer twice")
    if len(set(layers)) == count and not outside:
        problems.append("all of the target's layers: the draft would be the target")
    return problems


class DraftModel(HeadKind):
    """A Llama of `options.layers`; at any depth it says what it would after reading the text."""

    trained_depth = 1

    def start(self) -> Params:
        s, layers = self.target.settings, self.options.layers
        problems = layer_problems(layers, s.num_layers)
        if s.architecture not in ARCHITECTURES:
            problems.append(f"architecture {s.architecture}: only {', '.join(ARCHITECTURES)}")
        if problems:
            raise InputError("\n".join(["draft of a subset of layers", *problems]))
        params = {"model.norm.weight": self.target.norm.clone()}
        for i, layer in enumerate(layers):
            for name, tensor in self.target.layer(layer).items():
                params[f"model.layers.{i}.{name}"] = tensor.clone()
        return {name: tensor.to(self.device) for name, tensor in params.items()}

    def states(self, params: Params, batch: Batch, depth: int) -> Iterator[torch.Tensor]:
        import torch

        s = self.target.settings
        rotary = Rotary(s, self.device)
        x = self.embedding[batch.tokens]  # [B, T, H]
        position = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        mask = position[:, None, :] <= position[..., None]
        for i in range(len(self.options.layers)):
            layer = f"model.layers.{i}."
            normed = rms_norm(x, params[layer + "input_layernorm.weight"], s.norm_epsilon)
            q, k, v = (
                heads(linear(normed, params, f"{layer}self_attn.{name}_proj"), s.head_size)
                for name in "qkv"
            )
            y = attend(rotary(q, position), (rotary(k, position), v), mask, ())
            x = x + linear(y, params, layer + "self_attn.o_proj")
            norm = params[layer + "post_attention_layernorm.weight"]
            x = x + mlp(rms_norm(x, norm, s.norm_epsilon), params, layer)
        # The token at t + 2 follows the state at t + 1.
        said = batch.at(rms_norm(x, params["model.norm.weight"], s.norm_epsilon), 1)
        for _ in range(depth):
            yield said

    def lm_head(self, params: Params, depth: int) -> torch.Tensor:
        return self.teacher

    def files(self, params: Params) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        import torch

        target = self.target
        tied = bool(target.embedding.data_ptr() == target.lm_head.data_ptr()) or bool(
            (target.embedding == target.lm_head).all()
        )
        tensors = {**params, "model.embed_tokens.weight": target.embedding}
        said: dict[str, Any] = {}
        ids = self.ids.cpu()
        if self.options.reduced and len(ids) < len(target.lm_head):
            tied, said = False, {"lm_head_rows": len(ids)}
            tensors["lm_head.weight"] = target.lm_head[ids]
            tensors["d2t"] = torch.from_numpy(d2t(ids.numpy()))
        elif not tied:
            tensors["lm_head.weight"] = target.lm_head
        config = settings_config(
            self,
            num_hidden_layers=len(self.options.layers),
            tie_word_embeddings=tied,
            bos_token_id=target.config.get("bos_token_id"),
            eos_token_id=target.config.get("eos_token_id"),
            **said,
        )
        return tensors, {key: value for key, value in config.items() if value is not None}
