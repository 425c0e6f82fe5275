"""Removal from a shared store while others read and write.

First an artefact's manifest goes, which leaves a note of when; its objects follow once readers that
had begun are done. Objects that no manifest names belong to a writer at work until they are a day
old. Every age is taken by the store's own clock.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import defaultdict

from toolkit.store.places.place import Object, Place
from toolkit.store.shared_manifest import manifest_name

READERS_S = 3600.0
ABANDONED_S = 24 * 3600.0
_UPLOAD = re.compile(r"objects/([^/]+)/([0-9a-f]{32})/([^/]+)/.+")
_Upload = tuple[str, str, str]  # kind, digest, upload


def take_away(place: Place, kind: str, key: str) -> None:
    """The artefact's manifest, after a note that it went; a killed prune loses neither."""
    name = manifest_name(kind, key)
    try:
        raw = place.read(name)
    except FileNotFoundError:
        return
    if upload := _upload_in(raw):
        place.put(_note(kind, key, upload), raw)
    place.delete(name)


def sweep(place: Place, grace_s: float) -> None:
    """Remove the objects that nobody can be reading or writing any more."""
    uploads: dict[_Upload, list[Object]] = defaultdict(list)
    for item in place.listing("objects"):
        if match := _UPLOAD.fullmatch(item.name):
            uploads[match[1], match[2], match[3]].append(item)
    notes = {item.name: item for item in place.listing("removed")}
    if not uploads and not notes:
        return
    now = _clock(place)
    for (kind, key, upload), items in uploads.items():
        note = notes.get(_note(kind, key, upload))
        if note is None and now - max(item.modified for item in items) <= ABANDONED_S:
            continue
        if note is not None and now - note.modified < grace_s:
            continue
        if _in_use(place, kind, key, upload):
            continue
        for item in items:
            place.delete(item.name)
    # A note whose objects are gone, or whose manifest is back, has said what it had to say.
    for name, item in notes.items():
        if now - item.modified >= grace_s:
            place.delete(name)


def _in_use(place: Place, kind: str, key: str, upload: str) -> bool:
    """Whether the artefact's manifest names this upload, or cannot be read to tell."""
    try:
        named = _upload_in(place.read(manifest_name(kind, key)))
    except FileNotFoundError:
        return False
    return named is None or named == upload


def _upload_in(raw: bytes) -> str | None:
    try:
        found = json.loads(raw)["upload"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) and re.fullmatch(r"[0-9a-f]{32}", found) else None


def _note(kind: str, key: str, upload: str) -> str:
    return f"removed/{kind}/{key}/{upload}.json"


def _clock(place: Place) -> float:
    """The time that the store gives to what is written now."""
    name = f"removed/.now-{secrets.token_hex(8)}"
    place.put(name, b"")
    try:
        return max(item.modified for item in place.listing("removed") if item.name == name)
    finally:
        place.delete(name)
