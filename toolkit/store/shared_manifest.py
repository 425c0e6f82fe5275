"""The manifest of an artefact in a shared store: a local one, and where its objects are.

It was written by somebody else's machine, so everything in it is checked before it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.errors import RunError
from toolkit.store.files import MANIFEST, digest

PART_BYTES = 64 << 20
_LARGEST_PART = 1 << 30
SIGNATURE = f"{MANIFEST}.minisig"
_HEX = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class DamagedError(RunError):
    """An artefact in a shared store is not what it should be; nothing of it may be used."""

    def __init__(self, place: str, name: str, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        lines = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(
            f"{place}: {name} is damaged there, and nothing of it is used\n{lines}\n"
            f"  remove it with: spectool store prune --damaged --store {place}"
        )


@dataclass(frozen=True)
class Part:
    """A piece of one file, which is one object."""

    file: str
    index: int
    offset: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.file}/{self.index:05d}"


@dataclass(frozen=True)
class SharedManifest:
    """What `manifests/KIND/DIGEST.json` says, checked; `raw` are its bytes, which are signed."""

    content: dict[str, Any]
    raw: bytes

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        return dict(self.content["files"])

    @property
    def name(self) -> str:
        return f"{self.content['kind']}/{self.content['digest']}"

    @property
    def upload(self) -> str:
        return str(self.content["upload"])

    @property
    def bytes(self) -> int:
        return sum(int(file["bytes"]) for file in self.files.values())

    @property
    def prefix(self) -> str:
        """Below which its objects are."""
        return objects_of(self.content["kind"], self.content["digest"], self.upload)

    def parts(self) -> list[Part]:
        return parts_of(self.files, int(self.content["part_bytes"]))


def manifest_name(kind: str, key: str) -> str:
    return f"manifests/{kind}/{key}.json"


def objects_of(kind: str, key: str, upload: str) -> str:
    return f"objects/{kind}/{key}/{upload}"


def parts_of(files: Mapping[str, Mapping[str, Any]], part_bytes: int) -> list[Part]:
    """Each file cut into pieces of `part_bytes`; an empty file has none."""
    return [
        Part(name, index, offset, min(part_bytes, int(file["bytes"]) - offset))
        for name, file in files.items()
        for index, offset in enumerate(range(0, int(file["bytes"]), part_bytes))
    ]


def share_manifest(local: Mapping[str, Any], directory: Path, upload: str) -> SharedManifest:
    """The manifest under which a directory of this machine is shared."""
    executable = [
        name for name in local["files"] if (directory / name).stat().st_mode & 0o100
    ]  # a serve.sh that came back without it would not start
    content = {
        **{name: value for name, value in local.items() if name not in ("upload", "part_bytes")},
        "executable": executable,
        "part_bytes": PART_BYTES,
        "upload": upload,
    }
    return SharedManifest(content, (json.dumps(content, indent=2) + "\n").encode())


def check_manifest(raw: bytes, kind: str, key: str, place: str) -> SharedManifest:
    """The manifest in `raw`, or everything that is wrong with it."""
    try:
        content = json.loads(raw)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        what = "manifest: not a JSON object; cut short or overwritten"
        raise DamagedError(place, f"{kind}/{key}", [what])
    if problems := list(_problems(content, kind, key)):
        raise DamagedError(place, f"{kind}/{key}", problems)
    return SharedManifest(content, raw)


def checked_kind(kind: str) -> bool:
    return bool(_NAME.fullmatch(kind))


def _problems(content: dict[str, Any], kind: str, key: str) -> Iterator[str]:
    wanted = {"spec": dict, "files": dict, "made_by": dict, "executable": list}
    bad = [name for name, form in wanted.items() if not isinstance(content.get(name), form)]
    if bad:
        yield f"manifest: without {', '.join(bad)}"
        return
    if (content.get("kind"), content.get("digest")) != (kind, key):
        yield "manifest: it is another artefact's manifest"
    elif digest(content["spec"]) != key:
        yield "manifest: its spec does not have this digest"
    if not _HEX.fullmatch(str(content.get("upload"))):
        yield "manifest: 'upload' is not 32 hex digits"
    size = content.get("part_bytes")
    if not (isinstance(size, int) and 0 < size <= _LARGEST_PART):
        yield f"manifest: 'part_bytes' is not a number up to {_LARGEST_PART}"
    for name, file in content["files"].items():
        if not _is_inside(name):
            yield f"file name {name!r} does not stay in its directory"
        size = file.get("bytes") if isinstance(file, dict) else None
        if not (isinstance(size, int) and size >= 0) or not _SHA256.fullmatch(
            str(file.get("sha256"))
        ):
            yield f"{name}: no size or no sha256"


def _is_inside(name: str) -> bool:
    """Whether a file of this name can lie below the artefact's directory and nowhere else."""
    path = PurePosixPath(name)
    plain = "\\" not in name and "\0" not in name and name == path.as_posix()
    own = path.parts[:1] in ((MANIFEST,), (SIGNATURE,))
    return (
        plain and bool(path.parts) and not path.is_absolute() and ".." not in path.parts and not own
    )
