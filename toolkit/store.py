"""The content-addressed store: immutable directories named by digest, whole or absent.

    <root>/<kind>/<digest>/manifest.json   what made it, and every file with size and sha256
    <root>/.staging/<digest>-*/            being built; the next builder removes leftovers
    <root>/.locks/<digest>.lock            held while building, so that a second builder waits

A digest is taken over everything that changes the bytes, never over paths, names or times.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from toolkit.errors import BuildError, InputError, SpectoolError
from toolkit.provenance import provenance

MANIFEST = "manifest.json"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One artefact in the store; `cached` says that it was there before this call."""

    kind: str
    digest: str
    path: Path
    cached: bool


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
        raise _disk_error(error, path) from error
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
        raise _disk_error(error, final) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _alive(pid: str) -> bool:
    mine = pid == str(os.getpid())  # a killed process had our number: it cannot be us
    return not mine and (not pid.isdigit() or Path(f"/proc/{pid}").exists())


def default_root() -> Path:
    """`$SPECTOOL_STORE`, else `~/.cache/spectool` (`$XDG_CACHE_HOME` is honoured)."""
    if chosen := os.environ.get("SPECTOOL_STORE"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "spectool"


class Store:
    """Artefacts by kind and digest below one root directory."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or default_root()).expanduser().absolute()

    def path(self, kind: str, key: str) -> Path:
        """Where the artefact is, or will be."""
        return self.root / kind / key

    def has(self, kind: str, key: str) -> bool:
        return (self.path(kind, key) / MANIFEST).is_file()

    def publish(
        self,
        kind: str,
        spec: Mapping[str, Any],
        build: Callable[[Path], None],
        inputs: Callable[[], Mapping[str, Any]] = dict,
    ) -> Entry:
        """The entry for `spec`, built now if it is not there yet.

        `build` fills an empty private directory, which is then renamed into place: an entry is
        whole or absent. Two builders of one digest take turns, and the second finds it done.
        `inputs` says afterwards what it was made from, for the manifest and not for the digest.
        """
        key = digest(spec)
        final = self.path(kind, key)
        if self.has(kind, key):
            return Entry(kind, key, final, cached=True)
        try:
            with self._lock(key):
                if self.has(kind, key):
                    return Entry(kind, key, final, cached=True)
                self._build(kind, key, spec, build, inputs)
        except OSError as error:
            raise _disk_error(error, self.root) from error
        return Entry(kind, key, final, cached=False)

    def _build(
        self,
        kind: str,
        key: str,
        spec: Mapping[str, Any],
        build: Callable[[Path], None],
        inputs: Callable[[], Mapping[str, Any]],
    ) -> None:
        area = self.root / ".staging"
        area.mkdir(parents=True, exist_ok=True)
        # The lock is ours, so whatever lies here under this digest was left by a killed build.
        for leftover in area.glob(f"{key}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(dir=area, prefix=f"{key}-"))
        staging.chmod(0o755)
        started = time.monotonic()
        try:
            build(staging)
            manifest = {
                "kind": kind,
                "digest": key,
                "spec": spec,
                "inputs": inputs(),
                "files": describe_files(staging),
                "seconds": round(time.monotonic() - started, 3),
                "made_by": provenance(),
            }
            write_atomic(staging / MANIFEST, json.dumps(manifest, indent=2) + "\n")
            final = self.path(kind, key)
            final.parent.mkdir(parents=True, exist_ok=True)
            if final.exists():  # no manifest in it: not an entry, so nothing that anybody can use
                shutil.rmtree(final)
            staging.replace(final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        locks = self.root / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{key}.lock"):
            yield

    def entries(self) -> Iterator[dict[str, Any]]:
        """The manifest of every whole entry, with its `path` and total `bytes` added."""
        for found in sorted(self.root.glob(f"[!.]*/*/{MANIFEST}")):
            try:
                manifest = _read_entry(found.parent)
            except InputError:  # listed all the same, so that it can be verified and pruned
                manifest = _stand_in(found.parent)
            size = sum(int(file["bytes"]) for file in manifest["files"].values())
            yield {**manifest, "path": str(found.parent), "bytes": size}

    def damaged(self, path: Path) -> list[str]:
        """What in one entry differs from its manifest: missing, resized or changed files."""
        try:
            manifest = _read_entry(path)
        except InputError as error:
            return [str(error)]
        problems = []
        for name, wanted in manifest["files"].items():
            file = path / name
            if not file.is_file():
                problems.append(f"{name}: missing")
            elif file.stat().st_size != wanted["bytes"]:
                problems.append(f"{name}: {file.stat().st_size} bytes, expected {wanted['bytes']}")
            elif file_sha256(file) != wanted["sha256"]:
                problems.append(f"{name}: content differs from its sha256")
        return problems

    def prune(self, keep: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Remove every entry that `keep` refuses, and the leftovers of killed builds."""
        removed = [entry for entry in self.entries() if not keep(entry)]
        for entry in removed:
            doomed = Path(entry["path"])
            (doomed / MANIFEST).unlink()  # first: a half-removed directory must not look whole
            shutil.rmtree(doomed)
        for leftover in (self.root / ".staging").glob("*-*"):
            self._remove_if_abandoned(leftover)
        return removed

    def _remove_if_abandoned(self, staging: Path) -> None:
        """A staging directory whose digest nobody holds belongs to a killed build."""
        key = staging.name.partition("-")[0]
        try:
            with FileLock(self.root / ".locks" / f"{key}.lock", timeout=0):
                shutil.rmtree(staging, ignore_errors=True)
        except Timeout:
            return


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


def _read_entry(directory: Path) -> dict[str, Any]:
    manifest = read_manifest(directory)
    keys = {"kind", "digest", "spec", "files", "made_by"}
    if missing := sorted(keys - manifest.keys()):
        raise InputError(f"{directory / MANIFEST}: lacks {', '.join(missing)}")
    return manifest


def _stand_in(directory: Path) -> dict[str, Any]:
    """What the place alone says of an entry whose manifest is damaged."""
    stamp = time.gmtime((directory / MANIFEST).stat().st_mtime)
    return {
        "kind": directory.parent.name,
        "digest": directory.name,
        "spec": {},
        "files": {},
        "seconds": 0,
        "made_by": {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", stamp)},
    }


def _disk_error(error: OSError, where: Path) -> SpectoolError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BuildError(
            f"{where}: no space left on this disk; nothing half-written was kept. "
            "Free some (spectool store prune) or choose another disk with --store DIR"
        )
    return BuildError(f"{error.filename or where}: {error.strerror or error}")
