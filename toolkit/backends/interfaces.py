"""What plan, build and preflight ask a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from toolkit.recipe.schema import EngineLimits, Recipe
from toolkit.store import Store

if TYPE_CHECKING:
    from toolkit.backends.runtime import Runtime
    from toolkit.checkpoint.tokenizer import Tokenizer
    from toolkit.engine.built import BuiltModels


class Backend(ABC):
    """Builds engines; everything that differs by backend stands in the backend's own package."""

    # Engines may be planned and checked here and built on another machine.
    builds_elsewhere: ClassVar[bool] = False

    @staticmethod
    @abstractmethod
    def unavailable() -> str | None:
        """Why engines can neither be built nor run on this machine; None when they can."""

    @staticmethod
    @abstractmethod
    def require(recipe: Recipe) -> None:
        """Raise what keeps this machine from building the recipe's engines."""

    @staticmethod
    @abstractmethod
    def check(config: Mapping[str, Any], limits: EngineLimits, where: str) -> None:
        """Refuse what a build would refuse, from a checkpoint's config.json alone."""

    @staticmethod
    @abstractmethod
    def engine_spec(checkpoint_digest: str, recipe: Recipe, role: str) -> dict[str, Any] | None:
        """What an engine's digest is taken over; None: only the building machine can tell."""

    @staticmethod
    @abstractmethod
    def engine_command(recipe: Recipe, role: str) -> str:
        """The command or step that builds the engine, below the current directory."""

    @staticmethod
    def engine_notes(recipe: Recipe, role: str) -> tuple[str, ...]:
        """What is worth knowing about the engine before it is built."""
        return ()

    @abstractmethod
    def open(self, built: BuiltModels, tokenizer: Tokenizer, *, threads: int | None) -> Runtime:
        """The recipe's engines, loaded."""

    @staticmethod
    @abstractmethod
    def build_engine(
        checkpoint_dir: Path, out: Path, recipe: Recipe, role: str, store: Store
    ) -> None:
        """Write the engine of one checkpoint into `out`, which nobody reads yet."""
