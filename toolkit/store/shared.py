"""A shared store with a directory of this machine in front: fetch before building, push after."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolkit.errors import RunError
from toolkit.progress import progress
from toolkit.store.address import parse_address
from toolkit.store.files import MANIFEST, digest, disk_error, read_manifest, write_atomic
from toolkit.store.local import Entry, Store
from toolkit.store.remote import RemoteStore
from toolkit.store.shared_manifest import SIGNATURE, SharedManifest
from toolkit.store.signing import Trust


class SharedStore(Store):
    """`Store` whose entries are also those of `remote`; paths are always of this machine."""

    def __init__(
        self, url: str, root: Path | None = None, *, require_signature: bool = False
    ) -> None:
        super().__init__(root)
        self.remote = RemoteStore(
            parse_address(url), Trust.from_environment(wanted=require_signature)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedStore, (self.url, self.root)  # a worker makes its own connections

    @property
    def url(self) -> str:
        return str(self.remote)

    @property
    def shelf(self) -> RemoteStore:
        return self.remote

    def has(self, kind: str, key: str) -> bool:
        return self.here(kind, key) or self.remote.has(kind, key)

    def here(self, kind: str, key: str) -> bool:
        return super().here(kind, key) and self._trusted(kind, key)

    def manifest(self, kind: str, key: str) -> dict[str, Any]:
        if self.here(kind, key):
            return super().manifest(kind, key)
        if (found := self.remote.manifest(kind, key)) is None:
            raise RunError(f"{self.remote}: no {kind}/{key}")
        return found.content

    def share(self, kind: str, key: str) -> None:
        if self.here(kind, key):
            self.push(kind, key)

    def fetch(self, kind: str, key: str) -> Path:
        if not self.pull(kind, key):
            raise RunError(f"{self.remote}: no {kind}/{key}")
        return self.path(kind, key)

    def publish(
        self,
        kind: str,
        spec: Mapping[str, Any],
        build: Callable[[Path], None],
        inputs: Callable[[], Mapping[str, Any]] = dict,
    ) -> Entry:
        """As `Store.publish`, and shared when this returns.

        A digest that the shared store has is fetched, not built. What was built here and could not
        be pushed stays whole in this machine's directory, and the error says so.
        """
        key = digest(spec)
        if not self.pull(kind, key):
            self.remote.check_writable()
        entry = super().publish(kind, spec, build, inputs)
        self.push(kind, key)
        return entry

    def pull(self, kind: str, key: str) -> bool:
        """Have the artefact here; False when it is in neither place."""
        if self.here(kind, key):
            return True
        for _ in range(2):  # once more for one that was removed and pushed again meanwhile
            manifest = self.remote.manifest(kind, key)
            if manifest is None:
                return False
            try:
                with self._lock(key):
                    if not self.here(kind, key):
                        self._pull(kind, key, manifest)
                return True
            except FileNotFoundError:
                continue
            except OSError as error:
                raise disk_error(error, self.root) from error
        return False

    def push(self, kind: str, key: str) -> bool:
        """Share what is here; False when somebody's is there already."""
        directory = self.path(kind, key)
        if self.remote.has(kind, key):
            return False
        if problems := self.damaged(directory):
            lines = "\n".join(f"  {problem}" for problem in problems)
            raise RunError(f"{directory}: damaged, so it is not shared\n{lines}")
        size = sum(int(file["bytes"]) for file in read_manifest(directory)["files"].values())
        try:
            with progress(f"push {kind}/{key[:12]}", size) as bar:
                return self.remote.push(kind, key, directory, self.root / ".uploads", bar.advance)
        except RunError as error:
            raise RunError(
                f"{error}\n  {kind}/{key} is whole in {self.root}; share it later with: "
                f"spectool store push {key} --store {self.remote}"
            ) from None

    def _pull(self, kind: str, key: str, manifest: SharedManifest) -> None:
        area = self.root / ".staging"
        staging = area / f"{key}-pull-{manifest.upload}"
        for leftover in area.glob(f"{key}-*"):  # of a killed run; ours is continued
            if leftover != staging:
                shutil.rmtree(leftover, ignore_errors=True)
        with progress(f"pull {kind}/{key[:12]}", manifest.bytes) as bar:
            signature = self.remote.pull(manifest, staging, bar.advance)
        if signature:
            write_atomic(staging / SIGNATURE, signature)
        write_atomic(staging / MANIFEST, manifest.raw)
        self._install(staging, kind, key)

    def _trusted(self, kind: str, key: str) -> bool:
        """Built here, or fetched with a signature that counts."""
        trust, directory = self.remote.trust, self.path(kind, key)
        if trust is None or "upload" not in read_manifest(directory):
            return True
        signature = directory / SIGNATURE
        return trust.accepts(
            (directory / MANIFEST).read_bytes(),
            signature.read_bytes() if signature.is_file() else None,
        )
