"""What `build` leaves behind: a directory per role, and the recipe that they were made for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from toolkit.errors import InputError
from toolkit.recipe.schema import Recipe


@dataclass(frozen=True)
class BuiltModels:
    """Engines and tokenizers by role: `target`, then whatever the drafter needs."""

    recipe: Recipe
    engines: Mapping[str, Path]
    tokenizers: Mapping[str, Path]

    @property
    def tokenizer_dir(self) -> Path:
        """The target's: the one that text goes in and comes out by."""
        if "target" not in self.tokenizers:
            raise InputError(
                f"{self.recipe.target.checkpoint}: its tokenizer was not on this disk when this "
                "was built; fetch it (huggingface-cli download ... --include '*.json') and build "
                "again"
            )
        return self.tokenizers["target"]

    def to_json(self) -> str:
        """One JSON document, for a server process that must find the same files."""
        return json.dumps(
            {
                "recipe": self.recipe.model_dump(mode="json"),
                "engines": {role: str(path) for role, path in self.engines.items()},
                "tokenizers": {role: str(path) for role, path in self.tokenizers.items()},
            },
            indent=2,
        )

    @classmethod
    def from_json(cls, text: str) -> BuiltModels:
        """The inverse of `to_json`."""
        try:
            document = json.loads(text)
            return cls(
                recipe=Recipe.model_validate(document["recipe"]),
                engines={role: Path(path) for role, path in document["engines"].items()},
                tokenizers={role: Path(path) for role, path in document["tokenizers"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
            raise InputError(f"not a description of built models: {error}") from None
