"""The tokenizer of a model in a recipe: the one that lies with its weights, or another place's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.checkpoint.directory import read_json
from toolkit.checkpoint.hashes import content_hashes
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.small_files import CONFIG, SmallFiles, from_hub
from toolkit.checkpoint.source import is_offline, kind_of, open_source, source_identity
from toolkit.errors import CheckpointError, InputError
from toolkit.recipe.schema import ModelSpec
from toolkit.store import Store


class TokenizerFiles(SmallFiles):
    """A directory of which only the tokenizer is wanted: it need not have a config.json."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        config = directory / CONFIG
        self.config = read_json(config, name) if config.is_file() else {}
        self._spans = {}
        self.tensors = {}


def tokenizer_place(model: ModelSpec) -> str | None:
    """Where the tokenizer lies when that is not with Hugging Face's weights or in a GGUF.

    InputError for a TensorRT-LLM checkpoint when neither the recipe nor its directory has one.
    """
    if model.tokenizer is not None:
        return model.tokenizer
    if kind_of(model.checkpoint) != "ready":
        return None
    if (Path(model.checkpoint).expanduser() / "tokenizer.json").is_file():
        return model.checkpoint
    raise InputError(
        f"{model.checkpoint}: a TensorRT-LLM checkpoint has no tokenizer; add tokenizer: with the "
        "directory or hub id of the model that it was made from"
    )


def open_tokenizer_files(
    model: ModelSpec, store: Store | None = None, *, offline: bool | None = None
) -> Source:
    """What has the model's tokenizer files, fetched first where it must and may be."""
    place = tokenizer_place(model)
    if place is None:
        return open_source(model.checkpoint, model.revision, store=store, offline=offline)
    # What was fetched before is not asked for again: a branch may have moved since its digest.
    if here := tokenizer_files_here(place):
        return here
    away = is_offline() if offline is None else offline
    return TokenizerFiles(from_hub(place, None, offline=away), place)


def tokenizer_identity(model: ModelSpec, store: Store) -> dict[str, Any] | None:
    """What decides the tokenizer, for a digest; None: only the network could tell."""
    place = tokenizer_place(model)
    if place is None:
        return source_identity(model.checkpoint, model.revision, store=store)
    found = tokenizer_files_here(place)
    return {"files": content_hashes(found.files, store.root)} if found else None


def tokenizer_files_here(place: str) -> TokenizerFiles | None:
    """The files of a directory or of the hub cache; nothing is fetched."""
    if not _is_on_hub(place):
        return TokenizerFiles(Path(place).expanduser(), place)
    try:
        found = TokenizerFiles(from_hub(place, None, offline=True), place)
    except CheckpointError:
        return None
    return found if found.has_tokenizer else None


def _is_on_hub(place: str) -> bool:
    try:
        kind = kind_of(place)
    except InputError as error:
        raise InputError(f"tokenizer: {error}") from None
    if kind not in ("directory", "ready", "hub"):
        raise InputError(f"tokenizer {place!r}: expected a directory or a hub id")
    return kind == "hub"
