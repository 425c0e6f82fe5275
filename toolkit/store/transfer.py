"""Files to objects and back, in parts: side by side, each checked, continued after a stop."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

from toolkit.errors import RunError
from toolkit.store.files import file_sha256
from toolkit.store.places.place import Place
from toolkit.store.shared_manifest import DamagedError, Part, SharedManifest

T = TypeVar("T")

AT_ONCE = 6  # parts in flight: 6 x 64 MiB of memory at most
_TRIES = 3


def upload(
    place: Place, manifest: SharedManifest, directory: Path, advance: Callable[[float], None]
) -> None:
    """Every part of `directory` in `place`, read back and equal to what is here.

    A part that an earlier run left is read back instead of sent again.
    """
    there = {found.name: found.size for found in place.listing(manifest.prefix)}

    def send(part: Part) -> int:
        name = f"{manifest.prefix}/{part.name}"
        with (directory / part.file).open("rb") as file:
            file.seek(part.offset)
            data = file.read(part.size)
        for attempt in range(_TRIES):
            if attempt or there.get(name) != part.size:
                place.put(name, data)
            if _read(place, name) == data:
                return part.size
        raise RunError(
            f"{place.address}: {name} reads back as other bytes than were written, {_TRIES} times; "
            "nothing of this artefact is visible to others"
        )

    for size in in_order(place, send, manifest.parts()):
        advance(size)


def download(
    place: Place, manifest: SharedManifest, out: Path, advance: Callable[[float], None]
) -> None:
    """Every file below `out`, with its sha256; what an earlier run left there is continued.

    FileNotFoundError when an object is gone.
    """
    for _ in range(2):  # what a cut connection spoiled is fetched once more
        _fetch_missing(place, manifest, out, advance)
        wrong = [
            name
            for name, file in manifest.files.items()
            if file_sha256(out / name) != file["sha256"]
        ]
        if not wrong:
            break
        for name in wrong:
            (out / name).unlink()
    else:
        raise _damaged(
            place, manifest, [f"{name}: content differs from its sha256" for name in wrong]
        )
    for name in manifest.content["executable"]:
        if name in manifest.files:
            (out / name).chmod(0o755)


def problems_of(
    place: Place, manifest: SharedManifest, advance: Callable[[float], None]
) -> list[str]:
    """What of an artefact in `place` differs from its manifest, without a copy on disk."""
    found: dict[str, str] = {}
    hashes = {name: hashlib.sha256() for name in manifest.files}

    def fetch(part: Part) -> tuple[Part, bytes | None]:
        return part, _read(place, f"{manifest.prefix}/{part.name}")

    for part, data in in_order(place, fetch, manifest.parts()):
        advance(part.size)
        if data is None:
            found.setdefault(part.file, f"{part.name} is missing")
        elif len(data) != part.size:
            what = f"{part.name} has {len(data)} bytes, expected {part.size}"
            found.setdefault(part.file, what)
        else:
            hashes[part.file].update(data)
    for name, file in manifest.files.items():
        if name not in found and hashes[name].hexdigest() != file["sha256"]:
            found[name] = f"{name}: content differs from its sha256"
    return [found[name] for name in manifest.files if name in found]


def in_order(place: Place, work: Callable[[Part], T], parts: Sequence[Part]) -> Iterator[T]:
    """The results of `work` in the order of `parts`, a few of them at work ahead of the reader."""
    with _threads(place) as pool:
        waiting = iter(parts)
        running: list[Future[T]] = [pool.submit(work, part) for part in islice(waiting, AT_ONCE)]
        while running:
            result = running.pop(0).result()
            running.extend(pool.submit(work, part) for part in islice(waiting, 1))
            yield result


@contextmanager
def _threads(place: Place) -> Iterator[ThreadPoolExecutor]:
    """A pool whose threads do not hold up a failure, nor Ctrl-C during a bad minute."""
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="store")
    try:
        yield pool
    except KeyboardInterrupt:
        place.stop()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _fetch_missing(
    place: Place, manifest: SharedManifest, out: Path, advance: Callable[[float], None]
) -> None:
    parts = manifest.parts()
    have = {name: _usable(out / name, name, manifest) for name in manifest.files}
    advance(sum(have.values()))

    def fetch(part: Part) -> tuple[Part, bytes]:
        name = f"{manifest.prefix}/{part.name}"
        for _ in range(_TRIES):
            data = place.read(name)
            if len(data) == part.size:
                return part, data
        what = f"{part.name} has {len(data)} bytes, expected {part.size}"
        raise _damaged(place, manifest, [what])

    missing = [part for part in parts if part.offset >= have[part.file]]
    for part, data in in_order(place, fetch, missing):
        with (out / part.file).open("ab") as file:
            file.write(data)
        advance(part.size)


def _usable(path: Path, name: str, manifest: SharedManifest) -> int:
    """Bytes of a partial file that end with a whole part; the rest is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    size, whole = path.stat().st_size, int(manifest.files[name]["bytes"])
    step = int(manifest.content["part_bytes"])
    kept = size if size == whole else min(size, whole) // step * step
    os.truncate(path, kept)
    return kept


def _damaged(place: Place, manifest: SharedManifest, problems: Sequence[str]) -> DamagedError:
    return DamagedError(str(place.address), manifest.name, problems)


def _read(place: Place, name: str) -> bytes | None:
    try:
        return place.read(name)
    except FileNotFoundError:
        return None
