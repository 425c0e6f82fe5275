"""Plug points as tables: names are data, and the module behind a name loads on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from toolkit.errors import UnknownNameError


class Registry(Mapping[str, Any]):
    """Names known at start-up, each with the `module:attribute` that implements it."""

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries:
            raise UnknownNameError(self.kind, name, self._entries)
        module, _, attribute = self._entries[name].partition(":")
        return getattr(import_module(module), attribute)

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # Mapping's own would import what the name stands for

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


# The tables stand here, below the parts that they name, so that the recipe can ask for a drafter's
# options without importing the algorithms: an entry is a string until somebody asks for it.
DRAFTERS = Registry(
    "drafter",
    {
        "none": "toolkit.speculation.drafters.none:NoDrafter",
        "draft_target": "toolkit.speculation.drafters.draft_target:DraftTargetDrafter",
        "ngram": "toolkit.speculation.drafters.ngram:NGramDrafter",
        "suffix": "toolkit.speculation.drafters.suffix:SuffixDrafter",
        "self_speculation": "toolkit.speculation.drafters.self_speculation:SelfSpeculationDrafter",
        "medusa": "toolkit.speculation.drafters.medusa:MedusaDrafter",
        "eagle": "toolkit.speculation.drafters.eagle:EagleDrafter",
        "eagle3": "toolkit.speculation.drafters.eagle3:Eagle3Drafter",
        "mtp": "toolkit.speculation.drafters.mtp:MtpDrafter",
        "pard": "toolkit.speculation.drafters.pard:PardDrafter",
        "dflash": "toolkit.speculation.drafters.dflash:DFlashDrafter",
        "dspark": "toolkit.speculation.drafters.dspark:DSparkDrafter",
        "sa": "toolkit.speculation.drafters.sa:SaDrafter",
        "redrafter": "toolkit.speculation.drafters.redrafter:ReDrafterDrafter",
        "lookahead": "toolkit.speculation.drafters.lookahead:LookaheadDrafter",
    },
)

FAMILIES = Registry(
    "model family",
    {
        "LlamaForCausalLM": "toolkit.checkpoint.families.llama:LLAMA",
        "MistralForCausalLM": "toolkit.checkpoint.families.mistral:MISTRAL",
        "Qwen2ForCausalLM": "toolkit.checkpoint.families.qwen2:QWEN2",
        "Qwen3ForCausalLM": "toolkit.checkpoint.families.qwen3:QWEN3",
        "GemmaForCausalLM": "toolkit.checkpoint.families.gemma:GEMMA",
    },
)

HEADS = Registry(
    "drafting head",
    {
        "medusa": "toolkit.checkpoint.heads.medusa:MEDUSA",
        "eagle": "toolkit.checkpoint.heads.eagle:EAGLE",
        "redrafter": "toolkit.checkpoint.heads.redrafter:REDRAFTER",
    },
)

HEAD_TRAINERS = Registry(
    "head that can be trained",
    {
        "medusa": "toolkit.training.medusa:MedusaHeads",
        "eagle": "toolkit.training.eagle:EagleHead",
        "eagle3": "toolkit.training.eagle3:Eagle3Head",
    },
)

BACKENDS = Registry(
    "backend",
    {
        "cpu": "toolkit.backends.cpu.backend:CpuBackend",
        "tensorrt": "toolkit.backends.tensorrt.backend:TensorrtBackend",
        "pytorch": "toolkit.backends.pytorch:PytorchBackend",
    },
)

# What a backend refuses about a recipe as it stands, by backend that refuses anything.
# Drafting heads as engines of backend `cpu`.
CPU_HEADS = Registry(
    "drafting head",
    {
        "eagle": "toolkit.engine.heads.eagle:build",
        "eagle3": "toolkit.engine.heads.eagle3:build",
        "medusa": "toolkit.engine.heads.medusa:build",
    },
)

RECIPE_RULES = Registry(
    "backend",
    {
        "cpu": "toolkit.engine.cpu_rules:recipe_problems",
        "tensorrt": "toolkit.engine.trtllm.rules:recipe_problems",
        "pytorch": "toolkit.engine.llmapi.rules:recipe_problems",
    },
)
