"""sha256 of large local files, remembered by path, size, change time and inode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from toolkit.errors import SpectoolError
from toolkit.progress import progress
from toolkit.store import file_sha256, write_atomic

CACHE = "hashes.json"


def content_hashes(files: Sequence[Path], root: Path) -> dict[str, str]:
    """File name -> sha256; only what changed since the last call is read."""
    cache = _load(root / CACHE)
    stamps = {path: _stamp(path) for path in files}
    unknown = [path for path in files if cache.get(stamps[path]) is None]
    if unknown:
        total = sum(path.stat().st_size for path in unknown)
        with progress("hash", total) as bar:
            for path in unknown:
                cache[stamps[path]] = file_sha256(path)
                bar.advance(path.stat().st_size)
        # Read again: another process may have added to it meanwhile. Losing a race costs a rehash,
        # and so does a store that cannot be written to.
        with suppress(OSError, SpectoolError):
            write_atomic(root / CACHE, json.dumps(_load(root / CACHE) | cache, indent=0) + "\n")
    return {path.name: cache[stamps[path]] for path in files}


def _stamp(path: Path) -> str:
    stat = path.stat()
    return f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ino}"


def _load(path: Path) -> dict[str, str]:
    """The remembered hashes; a damaged file is as good as none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, str) and len(v) == 64}
