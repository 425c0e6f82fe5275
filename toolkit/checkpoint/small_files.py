"""A model's config.json and tokenizer alone: kilobytes where its weights are gigabytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.checkpoint.directory import TOKENIZER_FILES, DirectorySource, read_json
from toolkit.checkpoint.source import is_offline, kind_of
from toolkit.errors import CheckpointError, InputError, RunError

CONFIG = "config.json"
_WANTED = [CONFIG, *TOKENIZER_FILES]


class SmallFiles(DirectorySource):
    """A model directory whose tensors nobody asks for."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.config = read_json(directory / CONFIG, name)
        self._spans = {}
        self.tensors = {}

    @property
    def files(self) -> list[Path]:
        """The files that decide what is read here."""
        found = [self.directory / name for name in _WANTED]
        return [path for path in found if path.is_file()]

    @property
    def has_tokenizer(self) -> bool:
        return (self.directory / "tokenizer.json").is_file()


def open_small_files(
    checkpoint: str, revision: str | None = None, *, offline: bool | None = None
) -> SmallFiles:
    """The small files of a directory or hub id, fetched first where they must and may be."""
    kind = kind_of(checkpoint)
    if kind not in ("directory", "hub"):
        raise InputError(f"checkpoint {checkpoint!r}: expected a directory or a hub id")
    if kind == "directory":
        return SmallFiles(Path(checkpoint).expanduser(), checkpoint)
    away = is_offline() if offline is None else offline
    return SmallFiles(from_hub(checkpoint, revision, offline=away), checkpoint)


def small_files_here(checkpoint: str, revision: str | None = None) -> SmallFiles | None:
    """The same without the network; None when they are not on this disk."""
    try:
        return open_small_files(checkpoint, revision, offline=True)
    except CheckpointError:
        return None


def read_model_config(
    checkpoint: str, revision: str | None = None, *, offline: bool | None = None
) -> dict[str, Any]:
    """config.json alone."""
    return open_small_files(checkpoint, revision, offline=offline).config


def from_hub(repository: str, revision: str | None, *, offline: bool) -> Path:
    """The directory in the hub cache that has them."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    from toolkit.checkpoint.fetch import quiet_bars

    try:
        found = snapshot_download(
            repository,
            revision=revision,
            local_files_only=offline,
            allow_patterns=_WANTED,
            tqdm_class=quiet_bars(),
        )
    except LocalEntryNotFoundError:
        reason = "the network is off" if offline else "the hub could not be reached"
        raise CheckpointError(
            repository, [f"config.json is not in the hub cache, and {reason}"]
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        first = next(iter(str(error).strip().splitlines()), repr(error))
        raise RunError(f"{repository}: could not be fetched from the hub: {first}") from None
    return Path(found)
