"""Paths in a recipe mean: relative to the file that says them. Here they become absolute."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def resolve_paths(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """`data` with the checkpoints, corpora, prompts and grammars that it names made absolute."""
    found = dict(data)
    for section in ("target", "speculation"):
        if section in found:
            found[section] = _resolve_checkpoints(found[section], base)
    speculation = found.get("speculation")
    if isinstance(speculation, dict) and isinstance(corpus := speculation.get("corpus"), str):
        found["speculation"] = {**speculation, "corpus": absolute(corpus, base)}
    guided = found.get("guided_decoding")
    if isinstance(guided, dict) and isinstance(guided.get("guide_file"), str):
        found["guided_decoding"] = {**guided, "guide_file": absolute(guided["guide_file"], base)}
    tune = found.get("tune")
    if isinstance(tune, dict) and isinstance(tune.get("prompts"), dict):
        prompts = {
            domain: absolute(value, base) if _names_prompt_file(value) else value
            for domain, value in tune["prompts"].items()
        }
        found["tune"] = {**tune, "prompts": prompts}
    return found


def _resolve_checkpoints(value: Any, base: Path) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        key: resolve_checkpoint(item, base)
        if key in ("checkpoint", "tokenizer") and isinstance(item, str)
        else _resolve_checkpoints(item, base)
        for key, item in value.items()
    }


def resolve_checkpoint(text: str, base: Path) -> str:
    """A path as an absolute one; `pip:...` and hub ids as they are."""
    if not text or text.startswith(("pip:", "bundled:")):
        return text
    explicit = text.startswith(("/", "./", "../", "~")) or text.endswith((".gguf", "/"))
    if explicit or not _HUB_ID.fullmatch(text) or (base / text).exists():
        return absolute(text, base)
    return text


def absolute(text: str, base: Path) -> str:
    # Not Path.resolve(): a symlinked checkpoint keeps the name that its owner gave it.
    return os.path.abspath(base / Path(text).expanduser())  # noqa: PTH100


def _names_prompt_file(value: Any) -> bool:
    return isinstance(value, str) and ("/" in value or value.endswith(".jsonl"))
