"""Rules about what models point at: engines, tokenizers, and the manifest that ties them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.engine.directory import read_engine
from toolkit.engine.trtllm.directory import read_engine as read_trt_engine
from toolkit.errors import InputError
from toolkit.serving.lint.repository import BACKEND, Finding, Model, Repository
from toolkit.serving.llmapi.contract import YAML
from toolkit.serving.llmapi.model_yaml import DRAFT_KEYS, read_model_yaml
from toolkit.serving.repository import changed_files
from toolkit.store import MANIFEST, file_sha256, read_manifest

_SMALL = 1 << 20


def check_paths(repository: Repository) -> Iterator[Finding]:
    for model in repository.parsed:
        if repository.contract(model) is None and model.config.backend != BACKEND:
            continue
        for parameter, role, path in _tokenizers(model):
            if not (path / "tokenizer.json").is_file():
                where = f"parameter {parameter!r}: {role}".rstrip(": ")
                yield model.error(f"{where}: no tokenizer.json in {path}", parameter)
        for parameter, role, path in engines_of(model):
            yield from _check_engine(
                repository, model, parameter, role or repository.role(model), path
            )


def _check_engine(
    repository: Repository, model: Model, parameter: str, role: str, path: Path
) -> Iterator[Finding]:
    try:
        largest = _largest_batch(model, path)
    except InputError as error:
        yield model.error(f"parameter {parameter!r}: {error}", parameter)
        return
    wanted = ((repository.manifest or {}).get("engines") or {}).get(role)
    manifest = _manifest(path)
    found = manifest.get("digest", "without a manifest")
    if wanted and wanted != found:
        yield model.error(
            f"parameter {parameter!r}: engine {found}, the repository was made for {wanted}",
            parameter,
        )
    for problem in _changed(path, manifest):
        yield model.error(
            f"parameter {parameter!r}: engine {path} changed after it was built: {problem}",
            parameter,
        )
    if model.config.max_batch_size > largest:
        yield model.warning(
            f"max_batch_size {model.config.max_batch_size} is above the engine's, {largest}: "
            "requests will wait"
        )


def _largest_batch(model: Model, path: Path) -> int:
    """Reads the engine as the model's backend would; InputError when it is none."""
    if model.config.backend == BACKEND:
        return int(read_trt_engine(path).build["max_batch_size"])
    return read_engine(path).max_batch_size


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


def engines_of(model: Model) -> Iterator[tuple[str, str, Path]]:
    """(parameter, role, directory) of every engine that the model names."""
    yield from _places(model, "gpt_model_path", "engine_dirs")


def named_directories(model: Model) -> Iterator[Path]:
    """Engines, tokenizers and a draft, absolute: what the model cannot do without."""
    for _, _, path in (*_tokenizers(model), *engines_of(model)):
        yield path.absolute()
    for version in model.versions:
        path = model.directory / str(version) / YAML
        if path.is_file():
            args = read_model_yaml(path.parent).llm_args
            speculation = args.get("speculative_config") or {}
            places = [args.get("model"), *(speculation.get(key) for key in DRAFT_KEYS)]
            yield from (Path(str(place)) for place in places if str(place).startswith("/"))


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


def _manifest(engine_dir: Path) -> dict[str, Any]:
    """Nothing for an engine from elsewhere."""
    try:
        return read_manifest(engine_dir)
    except InputError:
        return {}


def _changed(engine_dir: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Sizes of all files and content of small ones; `spectool store verify` reads everything."""
    files = manifest.get("files")
    for name, wanted in (files if isinstance(files, dict) else {}).items():
        file = engine_dir / name
        if not file.is_file():
            yield f"{name} is missing"
        elif (size := file.stat().st_size) != wanted["bytes"]:
            yield f"{name} has {size} bytes, expected {wanted['bytes']}"
        elif size <= _SMALL and file_sha256(file) != wanted["sha256"]:
            yield f"the content of {name} differs from its sha256"
