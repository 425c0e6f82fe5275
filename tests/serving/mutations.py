"""Ways to change a written repository, each a function of its directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from toolkit.serving.pbtxt import parse, to_text

LLM, BLS, ENSEMBLE = "tensorrt_llm", "tensorrt_llm_bls", "ensemble"
Mutation = Callable[[Path], None]


def replace(model: str, old: str, new: str) -> Mutation:
    """In the text of a config: the first occurrence."""

    def change(repository: Path) -> None:
        path = repository / model / "config.pbtxt"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


def edit(model: str, change: Callable[[object], None]) -> Mutation:
    """In the parsed config."""

    def apply(repository: Path) -> None:
        path = repository / model / "config.pbtxt"
        config = parse(path.read_text())
        change(config)
        path.write_text(to_text(config))

    return apply


def parameter(model: str, name: str, value: str | None) -> Mutation:
    def change(config) -> None:
        if value is None:
            del config.parameters[name]
        else:
            config.parameters[name].string_value = value

    return edit(model, change)


def tensor(config, name: str):
    return next(t for t in [*config.input, *config.output] if t.name == name)


def drop_input(config, name: str) -> None:
    config.input.remove(tensor(config, name))


def remap(step: int, kind: str, key: str, value: str | None) -> Mutation:
    def change(config) -> None:
        mapping = getattr(config.ensemble_scheduling.step[step], kind)
        if value is None:
            del mapping[key]
        else:
            mapping[key] = value

    return edit(ENSEMBLE, change)


def remove(path: str) -> Mutation:
    def change(repository: Path) -> None:
        target = repository / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return change


def write(path: str, text: str | bytes) -> Mutation:
    def change(repository: Path) -> None:
        target = repository / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())

    return change


def rename(model: str, name: str) -> Mutation:
    def change(repository: Path) -> None:
        (repository / model).rename(repository / name)

    return change


def speculation(**changes: object) -> Mutation:
    def change(config) -> None:
        value = config.parameters["speculation"]
        value.string_value = json.dumps({**json.loads(value.string_value), **changes})

    return edit(BLS, change)
