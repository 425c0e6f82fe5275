"""Named channels of a shared store: which set of artefacts is `staging`, which is `production`.

    channels/<service>/<channel>/<number>.json   what was current from then on; never written again

The highest number is current. A rollback is one more record, with the set that was current before,
so the history says everything that ever was, and two people cannot both have moved a channel.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from toolkit.errors import InputError, RunError
from toolkit.store.remote import RemoteStore
from toolkit.store.shared_manifest import DamagedError
from toolkit.store.signing import DistrustedError, Signer

KEPT = 3  # sets of each channel that prune keeps: the current one, and two to go back to
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FILE = re.compile(r"channels/([^/]+)/([^/]+)/(\d{8})\.json")
Artefact = tuple[str, str]  # kind, digest


@dataclass(frozen=True, kw_only=True)
class Release:
    """One record: a set of artefacts that became current in a channel."""

    service: str
    channel: str
    number: int
    artefacts: tuple[Artefact, ...]  # the Triton repository first
    previous: int | None  # where a rollback from here leads
    why: str
    time: str

    @property
    def name(self) -> str:
        return f"{self.service} {self.channel} #{self.number}"


class Channels:
    """The channels of one shared store."""

    def __init__(self, remote: RemoteStore) -> None:
        self.remote = remote

    def history(self, service: str, channel: str) -> list[Release]:
        """Every release, the current one last."""
        checked_name(service, "service")
        checked_name(channel, "channel")
        numbers = [n for s, c, n in self._listed(f"channels/{service}/{channel}")]
        return [self._read(service, channel, number) for number in numbers]

    def current(self, service: str, channel: str) -> Release:
        checked_name(service, "service")
        checked_name(channel, "channel")
        numbers = [n for s, c, n in self._listed(f"channels/{service}/{channel}")]
        if not numbers:
            raise InputError(
                f"{self.remote}: nothing was promoted to channel {channel!r} of {service!r}; "
                "`spectool store channels` lists what there is"
            )
        return self._read(service, channel, numbers[-1])

    def all(self) -> list[Release]:
        """The current release of every channel."""
        last = {(s, c): n for s, c, n in self._listed("channels")}
        return [self._read(s, c, n) for (s, c), n in sorted(last.items())]

    def promote(
        self, service: str, channel: str, artefacts: Sequence[Artefact], why: str
    ) -> Release:
        """Make a set current. It must be in the store, and nobody else may move the channel now."""
        history = self.history(service, channel)
        number = history[-1].number + 1 if history else 1
        if history and set(history[-1].artefacts) == set(artefacts):
            return history[-1]
        return self._write(
            Release(
                service=service,
                channel=channel,
                number=number,
                artefacts=tuple(artefacts),
                previous=history[-1].number if history else None,
                why=why,
                time=_now(),
            )
        )

    def rollback(self, service: str, channel: str) -> Release:
        """Make current again what was before; done twice, what was before that."""
        now = self.current(service, channel)
        if now.previous is None:
            raise InputError(f"{now.name}: the first one, so there is nothing to go back to")
        before = self._read(service, channel, now.previous)
        why = f"rollback from #{now.number} to #{before.number}"
        return self._write(replace(before, number=now.number + 1, why=why, time=_now()))

    def in_use(self) -> set[Artefact]:
        """What the current release of every channel names, and those that a rollback leads to."""
        found: set[Artefact] = set()
        for release in self.all():
            for _ in range(KEPT):
                found.update(release.artefacts)
                if release.previous is None:
                    break
                release = self._read(release.service, release.channel, release.previous)
        return found

    def _write(self, release: Release) -> Release:
        if missing := [pair for pair in release.artefacts if not self.remote.has(*pair)]:
            raise RunError(
                f"{release.name}: not in {self.remote} any more: "
                + ", ".join("/".join(pair) for pair in missing)
            )
        text = json.dumps({**asdict(release), "artefacts": [list(a) for a in release.artefacts]})
        signer = Signer.from_environment()
        signature = signer.sign(text.encode(), release.name).decode() if signer else None
        data = json.dumps({"release": text, "signature": signature}, indent=2).encode()
        name = _file(release.service, release.channel, release.number)
        place = self.remote.place
        if not place.create(name, data) and place.read(name) != data:
            raise RunError(
                f"{release.name}: somebody else moved this channel at the same moment; look "
                "(spectool store channels) and do it again if it is still right"
            )
        return release

    def _read(self, service: str, channel: str, number: int) -> Release:
        name = _file(service, channel, number)
        try:
            outer = json.loads(self.remote.place.read(name))
            text, signature = str(outer["release"]), outer["signature"]
            content: dict[str, Any] = json.loads(text)
            artefacts = tuple((str(kind), str(key)) for kind, key in content.pop("artefacts"))
            found = Release(**content, artefacts=artefacts)
        except FileNotFoundError:
            raise InputError(f"{self.remote}: no {service} {channel} #{number}") from None
        except (ValueError, KeyError, TypeError):
            raise DamagedError(str(self.remote), name, ["not a record of a channel"]) from None
        if (found.service, found.channel, found.number) != (service, channel, number):
            raise DamagedError(str(self.remote), name, ["another channel's record"])
        trust = self.remote.trust
        if trust and not trust.accepts(text.encode(), str(signature or "").encode()):
            raise DistrustedError(
                f"{self.remote}: {found.name} is not signed by a key in {trust.path}, so it is "
                "not used"
            )
        return found

    def _listed(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        for item in self.remote.place.listing(prefix):
            if match := _FILE.fullmatch(item.name):
                yield match[1], match[2], int(match[3])


def checked_name(text: str, what: str) -> str:
    """A service or channel: it becomes part of a path."""
    if not _NAME.fullmatch(text):
        raise InputError(f"{what} {text!r}: letters, digits and . _ - only")
    return text


def _file(service: str, channel: str, number: int) -> str:
    return f"channels/{service}/{channel}/{number:08d}.json"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
