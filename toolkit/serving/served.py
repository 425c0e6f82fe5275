"""What a repository is made of: models, and ways to put them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from toolkit.engine.built import BuiltModels
from toolkit.serving.pbtxt import ModelConfig


@dataclass(frozen=True)
class ServedModel:
    """One model of a repository."""

    config: ModelConfig
    source: str | None = None  # folder of triton_repo that has its code; None: no code
    role: str | None = None  # the engine that it runs, if it runs one alone
    files: Mapping[str, str] = field(default_factory=dict)  # beside its code: name -> text

    @property
    def name(self) -> str:
        return str(self.config.name)


class Place(Protocol):
    """(model, engine or tokenizer directory) -> how the model's config names that directory."""

    def __call__(self, model: str, directory: Path) -> str:
        """Absolute, or relative to the model's directory."""
        ...

    def absolute(self, model: str, directory: Path) -> str:
        """For a backend that knows of no model directory."""
        ...


@dataclass(frozen=True)
class Layout:
    """A way to serve: its models, and the one that clients talk to."""

    name: str
    entry: str
    models: Callable[[BuiltModels, Place], list[ServedModel]]
    # Programs beside the models, by name; and what is worth knowing about the deployment.
    programs: Callable[[BuiltModels], Mapping[str, str]] = lambda built: {}
    notes: Callable[[BuiltModels], list[str]] = lambda built: []
    needs: str = ""  # what the wheel's server lacks, in words; "": it has everything
