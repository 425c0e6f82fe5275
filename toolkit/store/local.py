"""The content-addressed store: immutable directories named by digest, whole or absent.

    <root>/<kind>/<digest>/manifest.json   what made it, and every file with size and sha256
    <root>/.staging/<digest>-*/            being built; the next builder removes leftovers
    <root>/.locks/<digest>.lock            held while building, so that a second builder waits

A digest is taken over everything that changes the bytes, never over paths, names or times.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from toolkit.errors import InputError, RunError
from toolkit.provenance import provenance
from toolkit.store.address import is_url
from toolkit.store.files import (
    MANIFEST,
    describe_files,
    digest,
    disk_error,
    file_sha256,
    read_manifest,
    write_atomic,
)

if TYPE_CHECKING:
    from toolkit.store.remote import RemoteStore


@dataclass(frozen=True)
class Entry:
    """One artefact in the store; `cached` says that it was there before this call."""

    kind: str
    digest: str
    path: Path
    cached: bool


def default_root() -> Path:
    """`$SPECTOOL_STORE`, else `~/.cache/spectool` (`$XDG_CACHE_HOME` is honoured).

    When `$SPECTOOL_STORE` is a URL, this is the directory in front of that shared store.
    """
    if (chosen := os.environ.get("SPECTOOL_STORE")) and not is_url(chosen):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "spectool"


class Store:
    """Artefacts by kind and digest below one root directory."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or default_root()).expanduser().absolute()

    @property
    def url(self) -> str | None:
        """Of the shared store behind this directory, where there is one."""
        return None

    def __str__(self) -> str:
        return self.url or str(self.root)

    @property
    def shelf(self) -> Store | RemoteStore:
        """What `spectool store` lists, verifies and prunes: of a shared store, the shared part."""
        return self

    def path(self, kind: str, key: str) -> Path:
        """Where the artefact is, or will be."""
        return self.root / kind / key

    def has(self, kind: str, key: str) -> bool:
        """Whether nothing has to be built to get this artefact."""
        return self.here(kind, key)

    def here(self, kind: str, key: str) -> bool:
        """Whether the artefact is whole at its `path`."""
        return (self.path(kind, key) / MANIFEST).is_file()

    def manifest(self, kind: str, key: str) -> dict[str, Any]:
        """What is known of an artefact that `has` has."""
        return read_manifest(self.path(kind, key))

    def share(self, kind: str, key: str) -> None:
        """See to it that everybody who uses this store has what is here."""

    def fetch(self, kind: str, key: str) -> Path:
        """The artefact's path once it is there: a shared store copies it to this machine."""
        if not self.here(kind, key):
            raise RunError(f"{self.root}: no {kind}/{key}")
        return self.path(kind, key)

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
        if self.here(kind, key):
            return Entry(kind, key, final, cached=True)
        try:
            with self._lock(key):
                if self.here(kind, key):
                    return Entry(kind, key, final, cached=True)
                self._build(kind, key, spec, build, inputs)
        except OSError as error:
            raise disk_error(error, self.root) from error
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
            self._install(staging, kind, key)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _install(self, staging: Path, kind: str, key: str) -> None:
        """Make a whole directory the entry, in place of what is no entry there."""
        final = self.path(kind, key)
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():  # no manifest in it, or not one to trust: nothing that anybody uses
            _remove(final)
        staging.replace(final)

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

    def problems(
        self, entry: Mapping[str, Any], advance: Callable[[float], None] = lambda amount: None
    ) -> list[str]:
        """`damaged` for one of `entries`; `advance` is told the bytes that were looked at."""
        found = self.damaged(self.path(entry["kind"], entry["digest"]))
        advance(entry["bytes"])
        return found

    def distrusted(self, entry: Mapping[str, Any]) -> list[str]:
        """Nothing: what is on this machine's own disk needs no signature."""
        return []

    def in_use(self) -> set[tuple[str, str]]:
        """(kind, digest) of what channels name, which only a shared store has."""
        return set()

    def prune(self, keep: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Remove every entry that `keep` refuses, and the leftovers of killed builds."""
        removed = [entry for entry in self.entries() if not keep(entry)]
        for entry in removed:
            _remove(Path(entry["path"]))
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


def _remove(entry: Path) -> None:
    (entry / MANIFEST).unlink(missing_ok=True)  # first: what is half gone must not look whole
    shutil.rmtree(entry)


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
