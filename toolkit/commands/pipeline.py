"""Pipelines for CI systems: files with `<<name>>` for what differs, in commands/pipelines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit import __version__
from toolkit.commands.write_new import write_new
from toolkit.errors import InputError, UnknownNameError
from toolkit.recipe.load import load_recipe
from toolkit.store.address import parse_address

_TEMPLATES = Path(__file__).parent / "pipelines"
_PLACEHOLDER = re.compile(r"<<(\w+)>>")
# What neither YAML, a shell nor a CI system's own expressions read anything into.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")

# By system: each file of the pipeline and its template, and the labels of a usual GPU runner.
SYSTEMS: Mapping[str, Mapping[str, str]] = {
    "github": {".github/workflows/spectool.yml": "github.yml"},
    "gitlab": {
        ".gitlab-ci.yml": "gitlab.yml",
        ".gitlab/spectool-build.yml": "gitlab_build.yml",
        ".gitlab/spectool-unchanged.yml": "gitlab_unchanged.yml",
    },
}
RUNNERS: Mapping[str, Sequence[str]] = {"github": ("self-hosted", "gpu"), "gitlab": ("gpu",)}


def write_pipeline(
    system: str, recipes: Sequence[Path], runner: Sequence[str], store: str | None, root: Path
) -> list[Path]:
    """The files of a pipeline below `root`: all of them, or none if one is there already."""
    if system not in SYSTEMS:
        raise UnknownNameError("CI system", system, SYSTEMS)
    texts = pipeline(system, recipes, runner or RUNNERS[system], store, root)
    if there := [str(root / name) for name in texts if (root / name).exists()]:
        raise InputError(f"{', '.join(there)}: exists already; remove it, or merge by hand")
    for name, text in texts.items():
        write_new(root / name, text)
    return [Path(name) for name in texts]


def pipeline(
    system: str, recipes: Sequence[Path], runner: Sequence[str], store: str | None, root: Path
) -> dict[str, str]:
    """File name -> text; the recipes must load, and lie below `root`, where the pipeline runs."""
    names = [_inside(path, root) for path in recipes]
    address = parse_address(store) if store else None
    place = [address.path.lstrip("/")] if address else []
    problems = [
        f"{text!r}: a pipeline takes letters, digits and . _ - / only"
        for text in (*names, *runner, *place)
        if not _PLAIN.fullmatch(text)
    ]
    if problems:
        raise InputError("\n".join(problems))
    backends = {load_recipe(str(root / name)).backend for name in names}
    extras = ["cpu"] if "cpu" in backends else []
    extras += [address.protocol] if address and address.protocol != "file" else []
    extra = f"[{','.join(extras)}]" if extras else ""
    values = {
        "recipes": json.dumps(" ".join(names)),
        "spectool": json.dumps(f"spectool{extra}=={__version__}"),
        "runner_json": json.dumps(json.dumps(list(runner))),
        "store": json.dumps(str(address or "")),
    }
    return {name: render(template, values) for name, template in SYSTEMS[system].items()}


def render(template: str, values: Mapping[str, str]) -> str:
    """The template with every placeholder replaced; one without a value is a bug of ours."""
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


def _inside(path: Path, root: Path) -> str:
    """The path as the checked-out repository has it."""
    full = (root / path).resolve()
    if not full.is_relative_to(root.resolve()):
        raise InputError(f"{path}: not below {root.resolve()}, so a pipeline would not have it")
    return full.relative_to(root.resolve()).as_posix()
