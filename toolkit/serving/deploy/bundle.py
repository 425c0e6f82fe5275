"""Where a repository's files lie on this machine, so that a container can be shown the same places.

Engines of TensorRT-LLM are named by absolute paths: a container sees everything where it is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from toolkit.engine.llmapi.placement import instances, ranks
from toolkit.engine.trtllm.placement import placement
from toolkit.errors import InputError
from toolkit.recipe.schema import Recipe
from toolkit.serving.lint.artefacts import named_directories
from toolkit.serving.lint.repository import read_repository
from toolkit.serving.repository import repository_manifest


@dataclass(frozen=True)
class Bundle:
    """A repository that spectool wrote, and what its deployment needs to know."""

    repository: Path  # absolute
    manifest: dict[str, Any]

    @cached_property
    def recipe(self) -> Recipe:
        return Recipe.model_validate(self.manifest["recipe"])

    @property
    def entry(self) -> str:
        return str(self.manifest["entry"])

    @property
    def layout(self) -> str:
        return str(self.manifest["layout"])

    @cached_property
    def outside(self) -> list[Path]:
        """Directories that the models name and the repository does not hold."""
        repository, _ = read_repository(self.repository)
        found = {path for model in repository.parsed for path in named_directories(model)}
        return sorted(path for path in found if not path.is_relative_to(self.repository))

    @property
    def gpus(self) -> int:
        """How many a machine needs."""
        recipe = self.recipe
        if recipe.backend == "tensorrt":
            return len(placement(recipe).all_gpus)
        if recipe.backend == "pytorch":
            return instances(recipe) * ranks(recipe) // recipe.serve.pytorch.nodes
        return 0

    @property
    def name(self) -> str:
        """For containers and Kubernetes: letters, digits and dashes."""
        plain = "".join(c if c.isalnum() else "-" for c in self.recipe.name.lower())
        return plain.strip("-")[:50].rstrip("-") or "spectool"


def open_bundle(repository: Path) -> Bundle:
    """InputError for a directory that spectool did not write."""
    repository = repository.expanduser().absolute()
    manifest = repository_manifest(repository)
    if manifest is None:
        raise InputError(f"{repository}: not a repository that spectool repo wrote")
    return Bundle(repository, manifest)
