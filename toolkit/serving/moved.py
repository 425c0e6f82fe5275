"""A Triton repository that leaves this machine, and one that arrives: paths made names, and back.

A repository points at engines and tokenizers by paths of the machine that wrote it. In a shared
store each of these is `${spectool:KIND/DIGEST}`, and the repository's own `${spectool:repository}`;
where it is deployed they become paths of that machine.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.errors import InputError
from toolkit.serving.repository import (
    changed_files,
    replace_repository,
    repository_manifest,
)
from toolkit.store import MANIFEST, Store, describe_files, digest, write_atomic

KIND = "repositories"
_LARGEST_TEXT = 4 << 20
_NAME = re.compile(r"\$\{spectool:(repository|[a-z_]+/[0-9a-f]{32})\}")
_OWN = "${spectool:repository}"


def share_repository(repository: Path, store: Store) -> tuple[list[tuple[str, str]], str]:
    """Publish a repository in `store`: (kind, digest) of it and of what it points at; its service.

    The repository comes first. InputError when it was edited since spectool wrote it, or points at
    something that the store does not have.
    """
    repository = repository.expanduser().absolute()
    manifest = repository_manifest(repository)
    if manifest is None:
        raise InputError(f"{repository}: not a Triton repository that spectool wrote")
    if changed := changed_files(repository, manifest):
        raise InputError(
            f"{repository}: edited since spectool wrote it ({', '.join(changed[:5])}); write it "
            "again (spectool repo), so that its recipe and its files agree"
        )
    pairs = _pairs(manifest)
    names = {str(store.path(*pair)): f"${{spectool:{'/'.join(pair)}}}" for pair in pairs}
    names[str(repository)] = _OWN
    texts = {
        name: text
        for name in manifest["files"]
        if (text := _renamed(repository / name, names)) is not None
    }
    used = [
        pair for pair in pairs if any(f"{{spectool:{'/'.join(pair)}}}" in t for t in texts.values())
    ]
    _refuse_elsewhere(repository, manifest, used)
    files = {
        name: digest({"text": texts[name]}) if name in texts else file["sha256"]
        for name, file in sorted(manifest["files"].items())
    }
    spec = {
        "kind": KIND,
        "recipe": manifest["recipe"],
        "layout": manifest["layout"],
        "engines": manifest["engines"],
        "tokenizers": manifest["tokenizers"],
        "files": files,
    }

    def build(out: Path) -> None:
        for name in manifest["files"]:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, out / name)
            if name in texts:
                (out / name).write_text(texts[name], encoding="utf-8")
        kept = {key: value for key, value in manifest.items() if key != "files"}
        (out / "repository.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")

    entry = store.publish(KIND, spec, build)
    return [(KIND, entry.digest), *used], str(manifest["recipe"]["name"])


def deploy_repository(key: str, store: Store, out: Path, *, force: bool = False) -> Path:
    """Write a shared repository at `out`, with what it points at fetched to this machine."""
    source = store.fetch(KIND, key)

    def fill(staging: Path, final: Path) -> None:
        shutil.copytree(source, staging, dirs_exist_ok=True)
        (staging / MANIFEST).unlink()
        (staging / f"{MANIFEST}.minisig").unlink(missing_ok=True)
        manifest = json.loads((staging / "repository.json").read_text(encoding="utf-8"))
        (staging / "repository.json").unlink()
        for path in (path for path in staging.rglob("*") if path.is_file()):
            if text := _text(path):
                path.write_text(
                    _NAME.sub(lambda found: _place(found[1], store, final), text), encoding="utf-8"
                )
        manifest["files"] = describe_files(staging)
        write_atomic(staging / MANIFEST, json.dumps(manifest, indent=2) + "\n")

    return replace_repository(out, fill, force=force)


def _place(name: str, store: Store, final: Path) -> str:
    return str(final) if name == "repository" else str(store.fetch(*name.split("/")))


def _pairs(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = [
        (kind, key)
        for kind in ("engines", "tokenizers")
        for key in manifest[kind].values()
        if key is not None
    ]
    return list(dict.fromkeys(found))


def _renamed(path: Path, names: Mapping[str, str]) -> str | None:
    """The text of a file with paths as names; None for a file without any, or not of text."""
    text = _text(path)
    if text is None or not any(name in text for name in names):
        return None
    for name in sorted(
        names, key=len, reverse=True
    ):  # the store may lie in the repository's parent
        text = text.replace(name, names[name])
    return text


def _text(path: Path) -> str | None:
    if path.stat().st_size > _LARGEST_TEXT:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def _refuse_elsewhere(
    repository: Path, manifest: Mapping[str, Any], used: list[tuple[str, str]]
) -> None:
    """Everything it serves is in the store, or inside the repository."""
    inside = {path.parent.name.partition("-")[2] for path in repository.glob(f"*/1/*/{MANIFEST}")}
    problems = [
        f"  {kind.removesuffix('s')} {role}"
        for kind in ("engines", "tokenizers")
        for role, key in manifest[kind].items()
        if (kind, key) not in used and key not in inside
    ]
    if problems:
        lines = "\n".join(problems)
        raise InputError(
            f"{repository}: points at what this store did not make\n{lines}\n"
            "  build it with spectool build and write the repository again with the same --store"
        )
