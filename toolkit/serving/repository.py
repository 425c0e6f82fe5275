"""Write a Triton model repository: whole or absent, with a manifest that names its engines."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.bundled import bundled
from toolkit.engine.built import BuiltModels
from toolkit.errors import BuildError, InputError
from toolkit.provenance import provenance
from toolkit.serving.layouts import layout_of
from toolkit.serving.pbtxt import to_text
from toolkit.serving.served import ServedModel
from toolkit.store import MANIFEST, describe_files, read_manifest, write_atomic

KIND = "triton_repository"


def write_repository(
    built: BuiltModels, out: Path, *, copy_engines: bool = False, force: bool = False
) -> Path:
    """The repository of a built recipe, in place of an older one of ours.

    With `copy_engines` it carries engines and tokenizers and can be moved to another machine;
    without, it points at the store.
    """

    def fill(staging: Path, final: Path) -> None:
        _fill(staging, built, Places(staging if copy_engines else None, final))

    return replace_repository(out, fill, force=force)


def replace_repository(
    out: Path, fill: Callable[[Path, Path], None], *, force: bool = False
) -> Path:
    """`fill(staging, out)` writes it aside, then it takes the place of an older one of ours."""
    out = out.expanduser().absolute()
    check_replaceable(out, force)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.building-"))
        staging.chmod(0o755)
        try:
            fill(staging, out)
            _swap_in(staging, out)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise _write_error(error, out) from error
    return out


def repository_manifest(repository: Path) -> dict[str, Any] | None:
    """The manifest of a repository that we wrote; None for any other directory."""
    try:
        manifest = read_manifest(repository)
    except (OSError, ValueError, InputError):
        return None
    return manifest if manifest.get("kind") == KIND else None


def changed_files(repository: Path, manifest: dict[str, Any]) -> list[str]:
    """What was edited, added or removed since we wrote the repository."""
    written, here = manifest.get("files", {}), describe_files(repository)
    here = {name: file for name, file in here.items() if _is_content(name)}
    return sorted(name for name in {*written, *here} if written.get(name) != here.get(name))


def _fill(staging: Path, built: BuiltModels, places: Places) -> None:
    layout = layout_of(built.recipe)
    models = layout.models(built, places)
    for model in models:
        _write_model(staging / model.name, model)
    for name, text in layout.programs(built).items():
        (staging / name).write_text(text, encoding="utf-8")
        (staging / name).chmod(0o755)
    manifest = {
        "kind": KIND,
        "layout": layout.name,
        "entry": layout.entry,
        "recipe": built.recipe.model_dump(mode="json"),
        "models": {model.name: {"role": model.role} for model in models},
        "engines": {role: _digest(path) for role, path in built.engines.items()},
        "tokenizers": {role: _digest(path) for role, path in built.tokenizers.items()},
        "files": describe_files(staging),
        "made_by": provenance(),
    }
    write_atomic(staging / MANIFEST, json.dumps(manifest, indent=2) + "\n")


class Places:
    """Where configs find engines and tokenizers: in the store, or copied beside the model code."""

    def __init__(self, copy_to: Path | None, out: Path) -> None:
        self._copy_to, self._out = copy_to, out
        self._copies: dict[tuple[str, Path], str] = {}

    def __call__(self, model: str, directory: Path) -> str:
        directory = directory.absolute()
        if self._copy_to is None:
            return str(directory)
        if (model, directory) not in self._copies:
            taken = sum(name == model for name, _ in self._copies)
            copy = f"1/{taken}-{directory.name}"
            shutil.copytree(directory, self._copy_to / model / copy)
            self._copies[model, directory] = copy
        return self._copies[model, directory]

    def absolute(self, model: str, directory: Path) -> str:
        """Good for as long as the repository stays where it is written."""
        return str(self._out / model / self(model, directory))


def _write_model(directory: Path, model: ServedModel) -> None:
    version = directory / "1"
    version.mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(to_text(model.config), encoding="utf-8")
    if model.source:
        shutil.copyfile(bundled("triton_repo") / model.source / "1/model.py", version / "model.py")
    for name, text in model.files.items():
        (version / name).write_text(text, encoding="utf-8")


def _digest(engine_dir: Path) -> str | None:
    """The digest of a store entry; None for an engine from elsewhere."""
    try:
        return str(read_manifest(engine_dir)["digest"])
    except (OSError, ValueError, KeyError, InputError):
        return None


def check_replaceable(out: Path, force: bool) -> None:
    """InputError unless `out` is free, or a repository of ours that nobody edited (or `force`)."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: a file; a repository is a directory")
    if not out.is_dir() or not any(out.iterdir()):
        return
    manifest = repository_manifest(out)
    if manifest is None:
        raise InputError(
            f"{out}: not empty and not a repository that spectool wrote; "
            "choose another directory or empty this one"
        )
    if not force and (changed := changed_files(out, manifest)):
        raise InputError(
            f"{out}: edited since spectool wrote it ({', '.join(changed[:5])}"
            f"{', ...' if len(changed) > 5 else ''}); --force replaces it"
        )


def _is_content(name: str) -> bool:
    return name != MANIFEST and "__pycache__" not in name


def _swap_in(staging: Path, out: Path) -> None:
    """Put the new repository in place of what is there; there is never a moment without one."""
    if not out.exists():
        staging.replace(out)
    elif not _exchange(staging, out):  # afterwards the old one is in staging, and removed there
        old = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.old-"))
        out.replace(old)
        staging.replace(out)
        shutil.rmtree(old)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two directories in one step, where kernel and file system can."""
    current_directory, exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    names = os.fsencode(first), os.fsencode(second)
    swapped = renameat2(current_directory, names[0], current_directory, names[1], exchange)
    return bool(swapped == 0)


def _write_error(error: OSError, out: Path) -> BuildError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BuildError(f"{out}: no space left on this disk; nothing half-written was kept")
    return BuildError(f"{error.filename or out}: {error.strerror or error}")
