"""Bring a rebuilt repository into a running server: model by model, requests going on.

Triton (in explicit model control) loads the new version of a model beside the old one, sends new
requests to it once it is ready, and lets go of the old one when its last request is answered and
the gRPC streams are closed through which it was asked. Until then both are in memory. A version
that does not load changes nothing.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import InputError, RunError
from toolkit.serving.lint import lint, raise_errors
from toolkit.serving.repository import repository_manifest
from toolkit.serving.server import TritonServer
from toolkit.store import MANIFEST

_LOAD_S = 600.0


@dataclass(frozen=True)
class Reloaded:
    """What changed in the server."""

    loaded: tuple[str, ...]
    unloaded: tuple[str, ...]


class Watcher:
    """Notices when the server's repository has been replaced, and brings the server up to date."""

    def __init__(self, server: TritonServer) -> None:
        """Before the server starts: what changes from then on is noticed."""
        self._server = server
        self._manifest = _manifest(server.repository)
        self._seen = _stamp(server.repository)

    def poll(self) -> Reloaded | None:
        """None while nothing changed; InputError or RunError leave the server as it was."""
        stamp = _stamp(self._server.repository)
        if stamp is None or stamp == self._seen:
            return None
        self._seen = stamp
        repository = self._server.repository
        raise_errors(repository, lint(repository))
        new = _manifest(repository)
        loaded, unloaded = changed_models(self._manifest, new), _gone(self._manifest, new)
        for model in loaded:
            self._control(model, "load")
        for model in unloaded:
            self._control(model, "unload")
        self._manifest = new
        return Reloaded(loaded, unloaded)

    def _control(self, model: str, what: str) -> None:
        url = f"{self._server.address.http}/v2/repository/models/{model}/{what}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=_LOAD_S):
                pass
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            reason = f"{what} {model}: {_reason(said)}"
            raise RunError(self._server.failure(reason)) from None
        except OSError as error:
            raise RunError(f"{what} {model}: no answer from {url}: {error}") from None


def changed_models(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Models to load, each after those that it asks: a repository lists them in that order.

    An ensemble goes along with its steps by itself, and is loaded again only where it changed.
    """
    before, after = _files_by_model(old), _files_by_model(new)
    return tuple(model for model in new["models"] if before.get(model) != after.get(model))


def _gone(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(model for model in old["models"] if model not in new["models"])


def _files_by_model(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, file in manifest["files"].items():
        model, _, rest = name.partition("/")
        found.setdefault(model, {})[rest] = file
    return found


def _manifest(repository: Path) -> dict[str, Any]:
    manifest = repository_manifest(repository)
    if manifest is None:
        raise InputError(
            f"{repository}: not written by spectool repo, so nobody can tell when it is complete"
        )
    return manifest


def _stamp(repository: Path) -> tuple[int, int] | None:
    """Changes when the repository is replaced, which happens in one step; None: not there now."""
    try:
        found = (repository / MANIFEST).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _reason(body: str) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.strip()
