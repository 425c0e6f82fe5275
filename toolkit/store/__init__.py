"""Where artefacts live: a directory of this machine, or one shared store with it as the cache."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.store.address import is_url
from toolkit.store.files import (
    MANIFEST,
    describe_files,
    digest,
    file_sha256,
    new_directory,
    read_manifest,
    write_atomic,
)
from toolkit.store.local import Entry, Store, default_root

__all__ = [
    "MANIFEST",
    "Entry",
    "Store",
    "default_root",
    "describe_files",
    "digest",
    "file_sha256",
    "new_directory",
    "open_store",
    "read_manifest",
    "reopen_store",
    "write_atomic",
]


def open_store(where: str | None = None, *, require_signature: bool = False) -> Store:
    """The store at a directory or URL; without one at `$SPECTOOL_STORE`, or in the cache.

    A URL has a directory of this machine in front: `$SPECTOOL_STORE` if it names one, else
    `~/.cache/spectool`.
    """
    named = where or os.environ.get("SPECTOOL_STORE") or ""
    if not is_url(named):
        return Store(Path(where) if where else None)
    from toolkit.store.shared import SharedStore

    return SharedStore(named, require_signature=require_signature)


def reopen_store(root: Path, url: str | None) -> Store:
    """The same store in another process: its directory, and the URL of the shared one behind."""
    if url is None:
        return Store(root)
    from toolkit.store.shared import SharedStore

    return SharedStore(url, root)
