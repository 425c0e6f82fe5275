"""Read an engine directory, and say at once what is wrong with a damaged or edited one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.engine.settings import DecoderSettings, decoder_settings, is_size
from toolkit.errors import InputError
from toolkit.store import digest

ENGINE_VERSION = 5  # raise it when the same inputs give other bytes
BLOCK_SIZE = 32  # tokens per KV block; OpenVINO's paged attention has no other
GRAPH, WEIGHTS, CONFIG = "model.xml", "model.bin", "config.json"
HEAD = "head.npz"  # of a drafting head: see engine/heads
SEAL = ("spectool", "config")  # where the graph keeps the digest of the config it was built for
_LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")


@dataclass(frozen=True)
class CpuEngine:
    """A checked engine directory."""

    directory: Path
    settings: DecoderSettings
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    captured_layers: tuple[int, ...]
    seal: str
    head: str | None = None  # the kind of drafting head that this is
    reads: tuple[int, ...] = ()  # the target's layers whose states it reads
    block_size: int = BLOCK_SIZE

    @property
    def graph(self) -> Path:
        return self.directory / GRAPH


def read_engine(directory: Path) -> CpuEngine:
    """The engine in `directory`; InputError when spectool would not have written it so."""
    config = _read_config(directory)
    build, cpu = config.get("build_config"), config.get("cpu")
    if not isinstance(config.get("pretrained_config"), dict) or not isinstance(build, dict):
        raise InputError(f"{directory / CONFIG}: not an engine's config: no pretrained_config")
    if not isinstance(cpu, dict):
        raise InputError(f"{directory}: not an engine of backend cpu (no 'cpu' in {CONFIG})")
    problems = [*_version_problems(cpu), *_file_problems(directory, cpu), *_limit_problems(build)]
    problems += _captured_problems(cpu)
    if problems:
        raise InputError(
            f"{directory}: {len(problems)} problem(s); build the engine again\n"
            + "\n".join(f"  {problem}" for problem in problems)
        )
    return CpuEngine(
        directory=directory,
        settings=decoder_settings(config["pretrained_config"], str(directory)),
        captured_layers=tuple(cpu["captured_layers"]),
        seal=config_seal(config),
        **_head(cpu),
        max_batch_size=int(build["max_batch_size"]),
        max_input_len=int(build["max_input_len"]),
        max_seq_len=int(build["max_seq_len"]),
        max_num_tokens=int(build["max_num_tokens"]),
    )


def _head(cpu: Mapping[str, Any]) -> dict[str, Any]:
    head = cpu.get("head")
    return {"head": head["kind"], "reads": tuple(head["reads"])} if head else {}


def config_seal(config: Mapping[str, Any]) -> str:
    """A digest by which graph and config.json know that they belong together."""
    sealed = {key: config[key] for key in ("pretrained_config", "build_config")}
    return digest({**sealed, "captured_layers": config["cpu"]["captured_layers"]})


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{directory}: no {CONFIG}, so this is not an engine directory; run `spectool build`"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(config).__name__}")
    return config


def _version_problems(cpu: dict[str, Any]) -> list[str]:
    found = cpu.get("engine_version")
    if found == ENGINE_VERSION:
        return []
    return [f"engine version {found!r}, this spectool reads {ENGINE_VERSION}"]


def _file_problems(directory: Path, cpu: dict[str, Any]) -> list[str]:
    sizes = cpu.get("files")
    sizes = sizes if isinstance(sizes, dict) else {}
    problems = []
    for name in (GRAPH, WEIGHTS, *((HEAD,) if "head" in cpu else ())):
        file = directory / name
        if not file.is_file():
            problems.append(f"{name}: missing")
        elif file.stat().st_size != sizes.get(name):
            problems.append(f"{name}: {file.stat().st_size} bytes, expected {sizes.get(name)}")
    return problems


def _captured_problems(cpu: dict[str, Any]) -> list[str]:
    captured = cpu.get("captured_layers")
    if isinstance(captured, list) and captured and all(isinstance(n, int) for n in captured):
        return []
    return [f"cpu.captured_layers: {captured!r} is not a list of layers"]


def _limit_problems(build: dict[str, Any]) -> list[str]:
    return [
        f"build_config.{name}: {build.get(name)!r} is not a positive number"
        for name in _LIMITS
        if not is_size(build.get(name))
    ]
