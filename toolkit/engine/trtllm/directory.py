"""Read a TensorRT-LLM engine directory, and say everything that is wrong with it.

config.json     {version, pretrained_config, build_config}
rank{i}.engine  one for each of pretrained_config.mapping.world_size ranks
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.engine.trtllm.limits import MODE_NUMBERS
from toolkit.errors import InputError

_NUMBERS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width")


@dataclass(frozen=True)
class TrtEngine:
    """A whole engine directory."""

    directory: Path
    version: str
    pretrained: Mapping[str, Any]
    build: Mapping[str, Any]

    @property
    def world_size(self) -> int:
        return int(self.pretrained["mapping"]["world_size"])

    @property
    def mode(self) -> str | None:
        """The name of the speculative mode."""
        numbers = {number: name for name, number in MODE_NUMBERS.items()}
        return numbers[self.build["speculative_decoding_mode"]]

    @property
    def max_draft_len(self) -> int:
        return int(self.build["max_draft_len"])

    @property
    def block_reuse(self) -> bool:
        """Whether KV blocks can be reused, which draft tokens from outside need."""
        plugins = self.build.get("plugin_config") or {}
        return bool(plugins.get("use_paged_context_fmha")) and bool(plugins.get("paged_kv_cache"))


def read_engine(directory: Path) -> TrtEngine:
    """The engine; InputError with every problem when it is not whole."""
    config = _read_config(directory)
    problems = list(_problems(directory, config))
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"{directory}: not a whole TensorRT-LLM engine; build it again\n{lines}")
    return TrtEngine(
        directory, config["version"], config["pretrained_config"], config["build_config"]
    )


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{directory}: no config.json, so this is no engine directory") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(config).__name__}")
    if "cpu" in config:
        raise InputError(f"{directory}: an engine of backend cpu, not of TensorRT-LLM")
    return config


def _problems(directory: Path, config: Mapping[str, Any]) -> Iterator[str]:
    for key, kind in {"version": str, "pretrained_config": dict, "build_config": dict}.items():
        if not isinstance(config.get(key), kind):
            yield f"config.json: {key} is missing or no {kind.__name__}"
            return
    build = config["build_config"]
    for name in _NUMBERS:
        if not _is_count(build.get(name)) or build[name] < 1:
            yield f"config.json: build_config.{name} is {build.get(name)!r}"
    if not _is_count(build.get("max_draft_len")):
        yield f"config.json: build_config.max_draft_len is {build.get('max_draft_len')!r}"
    mode = build.get("speculative_decoding_mode")
    if not _is_count(mode) or mode not in MODE_NUMBERS.values():
        known = ", ".join(map(str, MODE_NUMBERS.values()))
        yield f"config.json: build_config.speculative_decoding_mode is {mode!r}, not {known}"
    yield from _rank_problems(directory, config["pretrained_config"].get("mapping"))


def _rank_problems(directory: Path, mapping: Any) -> Iterator[str]:
    size = mapping.get("world_size") if isinstance(mapping, Mapping) else None
    if not _is_count(size) or not size:
        yield f"config.json: pretrained_config.mapping.world_size is {size!r}"
        return
    wanted = {f"rank{rank}.engine" for rank in range(size)}
    for name in sorted(wanted):
        file = directory / name
        if not file.is_file():
            yield f"{name}: missing; world_size is {size}"
        elif not file.stat().st_size:
            yield f"{name}: empty"
    for file in sorted(directory.glob("rank*.engine")):
        if file.name not in wanted:
            yield f"{file.name}: does not belong to world_size {size}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
