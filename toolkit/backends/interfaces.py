"""What plan, build and preflight ask a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from toolkit.errors import InputError
from toolkit.recipe.schema import EngineLimits, HeadSource, ModelSpec, Recipe
from toolkit.store import Store

if TYPE_CHECKING:
    from toolkit.backends.runtime import Runtime
    from toolkit.checkpoint.tokenizer import Tokenizer
    from toolkit.engine.built import BuiltModels


@dataclass(frozen=True)
class CacheOptions:
    """Of an embedded engine's keys and values; other backends have settings of their own."""

    max_bytes: int | None = None  # of all models together; None: half of the memory here
    share_prefixes: bool = False  # prompts that begin alike are read once: not for measuring


DEFAULT_CACHE = CacheOptions()


class Backend(ABC):
    """Builds engines; everything that differs by backend stands in the backend's own package."""

    # Engines may be planned and checked here and built on another machine.
    builds_elsewhere: ClassVar[bool] = False
    # Matrices that somebody else quantised cannot be used.
    needs_floats: ClassVar[bool] = False
    # Its loaded models are language models that any drafter can be put beside.
    shows_logits: ClassVar[bool] = False
    # A server that runs the recipe can be asked for tokens: see `connect`.
    connects: ClassVar[bool] = False
    # Of an engine's spec, what the machine decides: the keys of `machine()`.
    machine_keys: ClassVar[tuple[str, ...]] = ()
    # Releases of TensorRT-LLM that its rules tell apart, oldest first; "": it has none.
    releases: ClassVar[tuple[str, ...]] = ("",)

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
    def engine_spec(
        checkpoint_digest: str, recipe: Recipe, role: str, machine: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """What an engine's digest is taken over; None: only the building machine can tell.

        `machine` is what `machine()` said on the machine that builds; without it, that is this one.
        """

    @staticmethod
    def machine() -> Mapping[str, Any]:
        """What an engine's digest takes from this machine; empty when it cannot be told here."""
        return {}

    @staticmethod
    def builder(recipe: Recipe) -> Mapping[str, str]:
        """What the recipe asks of the machine of its engines, in the words of `machine()`."""
        return {}

    @staticmethod
    def gpus(recipe: Recipe, role: str) -> int:
        """How many one engine uses."""
        return 0

    @staticmethod
    @abstractmethod
    def engine_command(recipe: Recipe, role: str) -> str:
        """The command or step that builds the engine, below the current directory."""

    @staticmethod
    def engine_heads(recipe: Recipe) -> HeadSource | None:
        """Drafting heads that become an engine of their own, role `heads`."""
        return None

    @staticmethod
    def untunable(recipe: Recipe) -> str | None:
        """Why its loaded models cannot be asked for this draft length and that, in words."""
        return None

    @staticmethod
    def untraceable(recipe: Recipe) -> str | None:
        """Why they cannot say how a drafter would have done on a text, in words.

        Of recipes whose draft length can be tuned.
        """
        return None

    @staticmethod
    def engine_notes(recipe: Recipe, role: str) -> tuple[str, ...]:
        """What is worth knowing about the engine before it is built."""
        return ()

    @abstractmethod
    def open(
        self,
        built: BuiltModels,
        tokenizer: Tokenizer,
        *,
        threads: int | None,
        cache: CacheOptions = DEFAULT_CACHE,
    ) -> Runtime:
        """The recipe's engines, loaded."""

    def connect(self, built: BuiltModels, tokenizer: Tokenizer, url: str) -> Runtime:
        """The recipe as a server runs it at `url`, for backends that are served so."""
        raise InputError(
            f"{url}: backend {built.recipe.backend!r} is not asked over the network here; leave "
            "--url out to load it, or see spectool serve"
        )

    @staticmethod
    @abstractmethod
    def build_engine(
        checkpoint_dir: Path, out: Path, recipe: Recipe, role: str, store: Store
    ) -> None:
        """Write the engine of one checkpoint into `out`, which nobody reads yet."""


class LoadingBackend(Backend):
    """Loads Hugging Face checkpoints as they are: nothing is converted, a directory deploys it.

    What it may need besides is a draft in the layout that it loads, and the target's tokenizer
    for measuring, where that lies on this disk.
    """

    @staticmethod
    @abstractmethod
    def draft_model(recipe: Recipe) -> ModelSpec | None:
        """The draft that is rewritten before it is deployed, if there is one."""

    @staticmethod
    @abstractmethod
    def draft_command(recipe: Recipe) -> str:
        """The step that rewrites it, in words."""

    @staticmethod
    @abstractmethod
    def draft_spec(recipe: Recipe, store: Store) -> dict[str, Any] | None:
        """What its digest is taken over; None: only the network could tell."""

    @staticmethod
    @abstractmethod
    def tokenizer_spec(recipe: Recipe, store: Store) -> dict[str, Any] | None:
        """The same for the target's tokenizer; None: it is not on this disk."""

    @staticmethod
    @abstractmethod
    def fetch(recipe: Recipe, *, offline: bool | None) -> None:
        """Bring the files here that a digest needs."""

    @staticmethod
    @abstractmethod
    def write_draft(recipe: Recipe, out: Path, *, offline: bool | None) -> None:
        """Write the draft as it is loaded."""

    @staticmethod
    @abstractmethod
    def write_tokenizer(recipe: Recipe, out: Path) -> None:
        """Write the target's tokenizer."""

    @staticmethod
    @abstractmethod
    def write_deployment(recipe: Recipe, draft: Path | None, out: Path) -> None:
        """Write the directory that deploys the recipe."""

    @classmethod
    def build_engine(
        cls, checkpoint_dir: Path, out: Path, recipe: Recipe, role: str, store: Store
    ) -> None:
        cls.write_deployment(recipe, checkpoint_dir, out)
