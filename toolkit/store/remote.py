"""A store that many machines share, as objects below one URL.

    manifests/<kind>/<digest>.json                the artefact exists; written last, and only once
    objects/<kind>/<digest>/<upload>/<file>/<n>   part n of a file, as one writer uploaded it
    removed/<kind>/<digest>/<upload>.json         a manifest that prune took away

Writers never share an upload, so none can spoil what another one's manifest names: of two that push
one digest at once, the first manifest stands and the other's objects go. A reader takes an artefact
by its manifest, every byte of it checked by sha256.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

from toolkit.errors import InputError
from toolkit.store import sweep
from toolkit.store.address import PLACES, Address
from toolkit.store.files import read_manifest, write_atomic
from toolkit.store.places.place import Object, Place
from toolkit.store.shared_manifest import (
    SIGNATURE,
    DamagedError,
    SharedManifest,
    check_manifest,
    checked_kind,
    manifest_name,
    share_manifest,
)
from toolkit.store.signing import SIGNING_KEY, DistrustedError, Signer, Trust
from toolkit.store.transfer import download, problems_of, upload

# An upload that nobody finished is continued for half a day, and swept up after a whole one.
CONTINUE_S = sweep.ABANDONED_S / 2
_MANIFEST = re.compile(r"manifests/([^/]+)/([0-9a-f]{32})\.json")
_READERS = 16


class RemoteStore:
    """Artefacts by kind and digest below one URL."""

    def __init__(self, address: Address, trust: Trust | None = None) -> None:
        self.address, self.trust = address, trust
        self._writable = False

    @cached_property
    def place(self) -> Place:
        """Connects, and so loads fsspec and its plugin."""
        found: Place = PLACES[self.address.protocol](self.address)
        return found

    def __str__(self) -> str:
        return str(self.address)

    def manifest(self, kind: str, key: str) -> SharedManifest | None:
        """What is there of an artefact; None when nothing is."""
        for tries_left in (2, 1, 0):
            try:
                raw = self.place.read(manifest_name(kind, key))
                return check_manifest(raw, kind, key, str(self))
            except FileNotFoundError:
                return None
            except DamagedError:  # perhaps on the way only
                if not tries_left:
                    raise
        return None

    def has(self, kind: str, key: str) -> bool:
        return self.manifest(kind, key) is not None

    def check_writable(self) -> None:
        """RunError when nothing could be pushed: better said before hours of building."""
        if self._writable:
            return
        if self.trust and not Signer.from_environment():
            raise InputError(
                f"{self}: what is shared must be signed, because signatures are required here; set "
                f"${SIGNING_KEY} to a minisign secret key, or build without sharing: --store DIR"
            )
        if signer := Signer.from_environment():
            signer.sign(b"", "is this key usable?")
        probe = f"objects/.probe-{secrets.token_hex(8)}"
        self.place.put(probe, b"spectool asks whether it may write here\n")
        self.place.delete(probe)
        self._writable = True

    def push(
        self, kind: str, key: str, directory: Path, records: Path, advance: Callable[[float], None]
    ) -> bool:
        """Share a directory of this machine; False when somebody's is there already.

        `records` remembers which upload a killed run had begun, so that the next one continues it.
        """
        if self.has(kind, key):
            return False
        record = records / f"{kind}-{key}.json"
        local = read_manifest(directory)
        mine = share_manifest(local, directory, self._upload_id(record, local))
        upload(self.place, mine, directory, advance)
        signer = Signer.from_environment()
        if signer:
            self.place.put(f"{mine.prefix}/{SIGNATURE}", signer.sign(mine.raw, f"{kind}/{key}"))
        first = self.place.create(manifest_name(kind, key), mine.raw)
        stands = self.manifest(kind, key)
        won = stands is not None and stands.upload == mine.upload
        if not won and not first:  # nobody can know our upload: its name was in no manifest
            for found in self.place.listing(mine.prefix):
                self.place.delete(found.name)
        record.unlink(missing_ok=True)
        return won

    def pull(
        self, manifest: SharedManifest, out: Path, advance: Callable[[float], None]
    ) -> bytes | None:
        """Fill `out` with the artefact, and return its signature if it has one.

        What an earlier run fetched into `out` is continued. FileNotFoundError when it was removed
        meanwhile, and RunError when it is damaged or not signed as required: then nothing of it
        may be used.
        """
        signature = self.signature(manifest)
        out.mkdir(parents=True, exist_ok=True)
        try:
            download(self.place, manifest, out, advance)
        except FileNotFoundError as error:
            now = self.manifest(manifest.content["kind"], manifest.content["digest"])
            if now and now.upload == manifest.upload:
                raise DamagedError(str(self), manifest.name, [f"{error} is missing"]) from None
            raise
        return signature

    def signature(self, manifest: SharedManifest) -> bytes | None:
        """The signature of a manifest; RunError when one is required and none is good."""
        try:
            found = self.place.read(f"{manifest.prefix}/{SIGNATURE}")
        except FileNotFoundError:
            found = None
        if self.trust and not self.trust.accepts(manifest.raw, found):
            state = "is not signed" if found is None else "is signed by another key, or changed"
            raise DistrustedError(
                f"{self}: {manifest.name} {state}; signatures by the keys in {self.trust.path} "
                "are required, so nothing of it is used"
            )
        return found

    def entries(self) -> Iterator[dict[str, Any]]:
        """As `Store.entries`; one whose manifest is damaged is listed with what is known."""
        found = [
            (match, item)
            for item in self.place.listing("manifests")
            if (match := _MANIFEST.fullmatch(item.name)) and checked_kind(match[1])
        ]
        with ThreadPoolExecutor(_READERS) as pool:
            yield from filter(
                None, pool.map(lambda pair: self._entry(pair[0][1], pair[0][2], pair[1]), found)
            )

    def _entry(self, kind: str, key: str, item: Object) -> dict[str, Any] | None:
        path = f"{self}/{kind}/{key}"
        try:
            manifest = self.manifest(kind, key)
        except DamagedError:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(item.modified))
            return {
                "kind": kind, "digest": key, "spec": {}, "files": {}, "seconds": 0,
                "made_by": {"time": stamp}, "path": path, "bytes": 0,
            }  # fmt: skip
        if manifest is None:  # removed since it was listed
            return None
        return {**manifest.content, "path": path, "bytes": manifest.bytes}

    def problems(
        self, entry: Mapping[str, Any], advance: Callable[[float], None] = lambda amount: None
    ) -> list[str]:
        """What of an artefact is missing, cut short or changed."""
        try:
            manifest = self.manifest(entry["kind"], entry["digest"])
            if manifest is None:
                return []  # removed since it was listed
        except DamagedError as error:
            return error.problems
        return problems_of(self.place, manifest, advance)

    def distrusted(self, entry: Mapping[str, Any]) -> list[str]:
        """Why an artefact that is whole would not be used: its signature, when one is required."""
        if self.trust is None:
            return []
        try:
            manifest = self.manifest(entry["kind"], entry["digest"])
            if manifest:
                self.signature(manifest)
        except DistrustedError as error:
            return [str(error)]
        except DamagedError:
            return []  # said by `problems`
        return []

    def in_use(self) -> set[tuple[str, str]]:
        """(kind, digest) of what channels name now, and may go back to."""
        from toolkit.store.channels import Channels

        return Channels(self).in_use()

    def prune(
        self, keep: Callable[[dict[str, Any]], bool], grace_s: float = sweep.READERS_S
    ) -> list[dict[str, Any]]:
        """Remove every artefact that `keep` refuses, and objects that no manifest names.

        Objects of an artefact go `grace_s` after its manifest, in this or a later prune: whoever
        is reading it may finish.
        """
        removed = [entry for entry in self.entries() if not keep(entry)]
        for entry in removed:
            sweep.take_away(self.place, entry["kind"], entry["digest"])
        sweep.sweep(self.place, grace_s)
        return removed

    def _upload_id(self, record: Path, local: dict[str, Any]) -> str:
        """The upload that an interrupted push of the same bytes to here began, or a new one."""
        wanted = {"store": str(self), "files": local["files"]}
        try:
            fresh = time.time() - record.stat().st_mtime < CONTINUE_S
            known = json.loads(record.read_text(encoding="utf-8"))
            if fresh and {**known, "upload": None} == {**wanted, "upload": None}:
                return str(known["upload"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        made = secrets.token_hex(16)
        write_atomic(record, json.dumps({**wanted, "upload": made}))
        return made
