"""A model's config.json alone: enough for many checks, and a few kilobytes instead of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.checkpoint.directory import read_json
from toolkit.checkpoint.source import is_offline, kind_of
from toolkit.errors import CheckpointError, InputError, RunError


def read_model_config(
    checkpoint: str, revision: str | None = None, *, offline: bool | None = None
) -> dict[str, Any]:
    """config.json of a directory or hub id, fetched first where it must be and may be."""
    kind = kind_of(checkpoint)
    if kind not in ("directory", "hub"):
        raise InputError(f"checkpoint {checkpoint!r}: expected a directory or a hub id")
    if kind == "directory":
        path = Path(checkpoint).expanduser() / "config.json"
        if not path.is_file():
            raise CheckpointError(checkpoint, ["no config.json"])
    else:
        away = is_offline() if offline is None else offline
        path = _from_hub(checkpoint, revision, offline=away)
    return read_json(path, checkpoint)


def _from_hub(repository: str, revision: str | None, *, offline: bool) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        found = hf_hub_download(
            repository, "config.json", revision=revision, local_files_only=offline
        )
    except LocalEntryNotFoundError:
        reason = "the network is off" if offline else "the hub could not be reached"
        raise CheckpointError(
            repository, [f"config.json is not in the hub cache, and {reason}"]
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        first = next(iter(str(error).strip().splitlines()), repr(error))
        raise RunError(f"{repository}: config.json could not be fetched: {first}") from None
    return Path(found)
