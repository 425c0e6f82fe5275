"""Everything that the checks look at: headers, config files and tokenizers, nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from toolkit.checkpoint.config import family_of
from toolkit.checkpoint.convert import expected, placed
from toolkit.checkpoint.heads.combine import combine
from toolkit.checkpoint.heads.head import Head, HeadSpec, head_of
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.ready import ReadyCheckpoint
from toolkit.checkpoint.safetensors_file import Span
from toolkit.checkpoint.small_files import SmallFiles
from toolkit.checkpoint.tokenizer import Tokenizer
from toolkit.checkpoint.write import Part
from toolkit.engine.trtllm.directory import TrtEngine
from toolkit.errors import CheckpointError
from toolkit.recipe.release import Release, release
from toolkit.recipe.schema import ModelSpec, Recipe
from toolkit.registry import HEADS


@dataclass(frozen=True)
class Placed:
    """A checkpoint as it would be written: config.json and every tensor's parts."""

    config: Mapping[str, Any]
    tensors: Mapping[str, list[Part]]
    first_rank: Mapping[str, Span] | None = None  # of a checkpoint that is copied as it is


@dataclass
class Facts:
    """What could be opened; what could not is in the report already."""

    recipe: Recipe
    sources: dict[str, Source] = field(default_factory=dict)  # by role
    ready: dict[str, ReadyCheckpoint] = field(default_factory=dict)  # copied, not converted
    away: list[str] = field(default_factory=list)  # roles whose weights are not fetched yet
    small: dict[str, SmallFiles] = field(default_factory=dict)  # what is here of those
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)  # without heads
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)
    heads: Source | None = None
    engines: dict[str, TrtEngine] = field(default_factory=dict)
    repository: Path | None = None
    gpu: str | None = None
    gpu_memory: float | None = None  # GiB
    # Hugging Face's config.json by role, for a backend that loads checkpoints as they are.
    loaded: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _placed: dict[str, Placed | CheckpointError] = field(default_factory=dict)

    @property
    def models(self) -> dict[str, ModelSpec]:
        return self.recipe.models()

    @cached_property
    def head(self) -> HeadSpec | None:
        """The heads that are converted into the target's checkpoint."""
        return head_of(self.recipe)

    @cached_property
    def release(self) -> Release:
        return release(self.recipe.tensorrt_llm) or (1, 2)

    def placed(self, role: str) -> Placed:
        """The checkpoint of `role`, heads included; CheckpointError with all its problems."""
        if role not in self._placed:
            try:
                self._placed[role] = self._place(role)
            except CheckpointError as error:
                self._placed[role] = error
        found = self._placed[role]
        if isinstance(found, CheckpointError):
            raise found
        return found

    @property
    def described(self) -> dict[str, dict[str, Any]]:
        """The models in a converted config's words, where nothing is converted too."""
        unconverted = {role: _described(config) for role, config in self.loaded.items()}
        return unconverted | self.configs

    def _drafts_for(self, config: Mapping[str, Any]) -> bool:
        """Whether there are such heads for this target at all; P1 says so where there are not."""
        assert self.head
        kind: Head = HEADS[self.head.kind]
        return kind.architecture(config["architecture"], self.head.release) is not None

    def _place(self, role: str) -> Placed:
        if role in self.ready:
            return Placed(self.configs[role], {}, self.ready[role].ranks[0])
        small, heads = self.small.get(role), self.head if role == "target" else None
        if role in self.configs and small and not heads:
            family = family_of(small.config, self.models[role])
            parts = expected(small.config, family, self.configs[role], self.models[role])
            return Placed(self.configs[role], parts)
        if role not in self.sources:
            raise CheckpointError(self.models[role].checkpoint, ["not fetched yet"])
        source, model, config = self.sources[role], self.models[role], self.configs[role]
        if role == "target" and self.head and self.heads and self._drafts_for(config):
            whole = combine(source, self.heads, model, self.head)
            return Placed(whole.config, whole.tensors)
        return Placed(config, placed(source, family_of(source.config, model), config, model))


def _described(config: Mapping[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    words = {**config, **text} if isinstance(text, Mapping) else config
    heads = words.get("num_attention_heads", "?")
    names = config.get("architectures") or ["?"]
    return {
        "architecture": str(names[0]),
        "num_hidden_layers": words.get("num_hidden_layers", "?"),
        "hidden_size": words.get("hidden_size", "?"),
        "num_attention_heads": heads,
        "num_key_value_heads": words.get("num_key_value_heads", heads),
        "vocab_size": words.get("vocab_size", "?"),
        "dtype": str(words.get("torch_dtype") or words.get("dtype") or "?"),
    }
