"""EAGLE-3 (Li et al. 2025): fc over three captured states, one layer, an lm_head of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolkit.checkpoint.drafts.eagle3 import DraftPlan, Eagle3Form, plan_eagle3
from toolkit.checkpoint.drafts.eagle3_config import CAPTURED
from toolkit.checkpoint.drafts.target import converted_target_facts
from toolkit.checkpoint.interfaces import Source
from toolkit.engine.heads.eagle3 import layer_config
from toolkit.engine.heads.head_engine import target_ids
from toolkit.engine.settings import decoder_settings
from toolkit.errors import CheckpointError, InputError
from toolkit.speculation.drafters.eagle3 import default_layers
from toolkit.training.batches import Batch
from toolkit.training.chain import ChainHead
from toolkit.training.decoder import linear, rms_norm
from toolkit.training.head import HeadOptions, d2t, noise, settings_config
from toolkit.training.published import activation_problem, float32, vocabulary_problem

if TYPE_CHECKING:
    import torch

    from toolkit.training.head import Params

LAYER = "midlayer."
_TWO_INPUTS = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")


def layer_problem(layers: int) -> str | None:
    """Why a target of so many layers has no three of them to capture."""
    if len(set(default_layers(layers))) == 3 and min(default_layers(layers)) >= 0:
        return None
    return f"the target has {layers} layers; EAGLE-3 reads three of at least 7"


class Eagle3Head(ChainHead):
    """Embeddings are the target's and frozen.

    The residual stream keeps the target's scale: a head whose inputs were rescaled to 1 learnt
    badly.
    """

    layer = LAYER
    own_embedding = False  # a head of another width than its target has one

    @classmethod
    def problems(cls, head: Source, target: Mapping[str, Any], options: HeadOptions) -> list[str]:
        plan = _plan(head, target)
        found = list(plan.problems)
        if not plan.config:
            return found
        layers = default_layers(int(target["num_hidden_layers"]))
        reads = plan.captured_layers or layers
        if tuple(reads) != layers:
            found.append(
                f"config.json: {CAPTURED} is {list(reads)}; training data hold the states of "
                f"{list(layers)}, for heads that read those"
            )
        try:
            decoder_settings(layer_config(plan, target), head.name)
        except CheckpointError as error:
            found += error.problems
        found += activation_problem(plan.config.get("hidden_act"))
        return found + vocabulary_problem(options.draft_vocab, plan.config["draft_vocab_size"])

    def read(self, head: Source) -> Params:
        plan = _plan(head, self.target.config)
        ids = target_ids(head, plan.config["draft_vocab_size"])
        self.choose(ids)
        self.fixed_vocabulary = True
        self.options = replace(self.options, draft_vocab=len(ids))
        self.settings = decoder_settings(layer_config(plan, self.target.config), head.name)
        said_here = ("architectures", "torch_dtype", "eagle_config")
        self.config = {k: v for k, v in plan.config.items() if k not in said_here}
        names = dict(plan.tensors)
        names.pop("d2t", None)
        if embedding := names.pop("embed_tokens.weight", None):
            self.own_embedding = True
            self.embedding = float32(head, embedding).to(self.device)
        params = {ours: float32(head, theirs) for ours, theirs in names.items()}
        # A head over the whole vocabulary may leave lm_head to the target.
        return {"lm_head.weight": self.teacher.clone(), **params}

    def start(self) -> Params:
        """From the target: vocabulary rows, the last norm, the layer behind the last captured one.

        fc begins by passing on the last captured state; the embedding comes in through noise.
        """
        import torch

        s = self.target.settings
        if problem := layer_problem(s.num_layers):
            raise InputError(problem)
        hidden, draw = s.hidden_size, torch.Generator().manual_seed(self.options.seed)
        last = default_layers(s.num_layers)[-1]
        layer = self.target.layer(min(last + 1, s.num_layers - 1))
        fc = noise(draw, hidden, 3 * hidden, scale=0.1)
        fc[:, -hidden:] += torch.eye(hidden)
        params = {"fc.weight": fc}
        for name, tensor in layer.items():
            if name in _TWO_INPUTS:
                tensor = torch.cat([noise(draw, len(tensor), hidden, scale=0.5), tensor], 1)
            params[LAYER + name] = tensor.clone()
        params[LAYER + "hidden_norm.weight"] = layer["input_layernorm.weight"].clone()
        params[LAYER + "input_layernorm.weight"] = torch.ones(hidden)
        params["norm.weight"] = self.target.norm.clone()
        params["lm_head.weight"] = self.teacher.clone()
        return {name: tensor.to(self.device) for name, tensor in params.items()}

    def first(self, params: Params, batch: Batch) -> torch.Tensor:
        return linear(batch.captured, params, "fc")

    def join(
        self, params: Params, embedded: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        epsilon = self.settings.norm_epsilon
        both = (
            rms_norm(embedded, params[LAYER + "input_layernorm.weight"], epsilon),
            rms_norm(state, params[LAYER + "hidden_norm.weight"], epsilon),
        )
        return self.drop(torch.cat(both, -1)), state

    def said(self, params: Params, state: torch.Tensor) -> torch.Tensor:
        return rms_norm(state, params["norm.weight"], self.settings.norm_epsilon)

    def lm_head(self, params: Params, depth: int) -> torch.Tensor:
        return params["lm_head.weight"]

    def files(self, params: Params) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        import torch

        s, names = self.target.settings, self.options.layer_names
        tensors = {key.replace(LAYER, names): tensor for key, tensor in params.items()}
        ids = self.ids.cpu()
        tensors["d2t"] = torch.from_numpy(d2t(ids.numpy()))
        tensors["t2d"] = torch.zeros(s.vocab_size, dtype=torch.bool)
        tensors["t2d"][ids] = True
        if self.own_embedding:
            tensors["embed_tokens.weight"] = self.embedding.cpu()
        config = settings_config(
            self,
            architectures=["LlamaForCausalLMEagle3"],
            draft_vocab_size=len(ids),
            eagle_config={
                CAPTURED: list(default_layers(s.num_layers)),
                "use_aux_hidden_state": True,
            },
        )
        return tensors, dict(config)


def _plan(head: Source, target: Mapping[str, Any]) -> DraftPlan:
    return plan_eagle3(head, converted_target_facts(target), Eagle3Form(layer=LAYER))
