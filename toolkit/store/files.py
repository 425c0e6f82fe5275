"""Artefact directories on a disk: their digest, their manifest, and writing whole or not at all."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.errors import BuildError, InputError, SpectoolError

MANIFEST = "manifest.json"
_BLOCK = 1 << 20


def digest(spec: Mapping[str, Any]) -> str:
    """32 hex digits of sha256 over the canonical JSON of `spec`."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, read in blocks of 1 MiB."""
    state = hashlib.sha256()
    buffer = bytearray(_BLOCK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(view[:count])
    return state.hexdigest()


def write_atomic(path: Path, data: str | bytes) -> None:
    """Replace `path` in one step: a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise disk_error(error, path) from error
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """A private directory to fill, renamed to `final` at the end: whole or absent.

    `final` may be an empty directory, nothing else. What a killed run left beside it goes away.
    """
    final = final.absolute()
    if final.is_file() or (final.is_dir() and any(final.iterdir())):
        raise InputError(f"{final}: exists and is not empty; choose another directory")
    prefix = f".{final.name}.partial-"
    staging = final.parent / f"{prefix}{os.getpid()}"
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        for leftover in final.parent.glob(f"{glob.escape(prefix)}*"):
            if not _alive(leftover.name.removeprefix(prefix)):
                shutil.rmtree(leftover, ignore_errors=True)
        staging.mkdir()
        yield staging
        staging.replace(final)
    except OSError as error:
        raise disk_error(error, final) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _alive(pid: str) -> bool:
    mine = pid == str(os.getpid())  # a killed process had our number: it cannot be us
    return not mine and (not pid.isdigit() or Path(f"/proc/{pid}").exists())


def describe_files(root: Path) -> dict[str, dict[str, Any]]:
    """Every file below `root` by relative name: size in bytes and sha256."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {
        path.relative_to(root).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": file_sha256(path),
        }
        for path in files
    }


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of an artefact directory, or a sentence about what is wrong with it."""
    path = directory / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{directory}: no {MANIFEST}, so spectool did not build it") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable: {error}") from None
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: not a manifest: expected a JSON object")
    return manifest


def disk_error(error: OSError, where: Path) -> SpectoolError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BuildError(
            f"{where}: no space left on this disk; nothing half-written was kept. "
            "Free some (spectool store prune) or choose another disk with --store DIR"
        )
    return BuildError(f"{error.filename or where}: {error.strerror or error}")
