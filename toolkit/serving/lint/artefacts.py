"""Rules about what models point at: engines, tokenizers, and the manifest that ties them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from toolkit.engine.directory import read_engine
from toolkit.errors import InputError
from toolkit.serving.lint.repository import Finding, Model, Repository
from toolkit.serving.repository import changed_files
from toolkit.store import MANIFEST, read_manifest


def check_paths(repository: Repository) -> Iterator[Finding]:
    for model in repository.parsed:
        if repository.contract(model) is None:
            continue
        for parameter, role, path in _tokenizers(model):
            if not (path / "tokenizer.json").is_file():
                where = f"parameter {parameter!r}: {role}".rstrip(": ")
                yield model.error(f"{where}: no tokenizer.json in {path}", parameter)
        for parameter, role, path in _engines(model):
            yield from _check_engine(repository, model, parameter, role, path)


def _check_engine(
    repository: Repository, model: Model, parameter: str, role: str, path: Path
) -> Iterator[Finding]:
    try:
        engine = read_engine(path)
    except InputError as error:
        yield model.error(f"parameter {parameter!r}: {error}", parameter)
        return
    wanted = ((repository.manifest or {}).get("engines") or {}).get(role)
    found = _digest(path)
    if wanted and found and wanted != found:
        yield model.error(
            f"parameter {parameter!r}: engine {found}, the repository was made for {wanted}",
            parameter,
        )
    if model.config.max_batch_size > engine.max_batch_size:
        yield model.warning(
            f"max_batch_size {model.config.max_batch_size} is above the engine's, "
            f"{engine.max_batch_size}: requests will wait"
        )


def check_manifest(repository: Repository) -> Iterator[Finding]:
    """Our own repositories say what belongs to them."""
    manifest = repository.manifest
    if manifest is None:
        return
    for name in manifest.get("models", {}):
        if name not in repository.models:
            yield Finding("error", name, f"model {name} is in {MANIFEST} but not here")
    for name in changed_files(repository.directory, manifest):
        what = "edited" if (repository.directory / name).is_file() else "removed"
        what = what if name in manifest.get("files", {}) else "added"
        yield Finding("warning", name, f"{what} since spectool wrote the repository")


def _tokenizers(model: Model) -> Iterator[tuple[str, str, Path]]:
    yield from _places(model, "tokenizer_dir", "tokenizer_dirs")


def _engines(model: Model) -> Iterator[tuple[str, str, Path]]:
    yield from _places(model, "gpt_model_path", "engine_dirs")


def _places(model: Model, one: str, by_role: str) -> Iterator[tuple[str, str, Path]]:
    """(parameter, role, directory); relative ones start at the model's directory."""
    if one in model.parameters:
        role = model.parameters.get("role", "")
        yield one, role, model.directory / model.parameters[one]
    try:
        found = json.loads(model.parameters.get(by_role, "{}"))
    except ValueError:
        return  # said by the rule about parameters
    if isinstance(found, dict):
        for role, path in found.items():
            yield by_role, role, model.directory / str(path)


def _digest(engine_dir: Path) -> str | None:
    try:
        return str(read_manifest(engine_dir)["digest"])
    except (InputError, KeyError):
        return None
