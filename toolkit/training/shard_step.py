"""One shard of training data as a step: filled by any machine that sees store and directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolkit.checkpoint.tokenizer import load_tokenizer
from toolkit.speculation.interfaces import LanguageModel
from toolkit.store import Store, digest, reopen_store
from toolkit.training.generate import Generator, Tokens
from toolkit.training.prompts import load_prompt_book
from toolkit.training.session import DataOptions, TargetFiles, data_plan, target_model


def shard_work(
    target: TargetFiles,
    options: DataOptions,
    directory: Path,
    split: str,
    number: int,
    store: Store,
    threads: int | None,
) -> dict[str, Any]:
    """What `fill` needs."""
    return {
        "model": {
            "checkpoint": target.checkpoint_digest,
            "tokenizer": target.tokenizer_dir.name,
            "options": {**asdict(options), "prompts": str(options.prompts)},
            "store": str(store.root),
            "shared": store.url,
            "threads": threads,
        },
        "directory": str(directory),
        "split": split,
        "number": number,
    }


def fill(work: Mapping[str, Any]) -> dict[str, Any]:
    """The step: the shard is there when it returns; `tokens` 0 says that it was there before."""
    loaded = _loaded(work["model"])
    plan = data_plan(loaded.target, loaded.options, work["split"])
    book = load_prompt_book(loaded.options.prompts)
    made: list[int] = []
    Generator(loaded.model, loaded.tokenizer, book, plan).fill(
        Path(work["directory"]), [work["number"]], lambda _, tokens: made.append(tokens)
    )
    return {"tokens": sum(made)}


@dataclass(frozen=True)
class _Loaded:
    target: TargetFiles
    options: DataOptions
    model: LanguageModel
    tokenizer: Tokens


_LOADED: dict[str, _Loaded] = {}  # at most one


def _loaded(said: Mapping[str, Any]) -> _Loaded:
    key = digest(said)
    if key not in _LOADED:
        _LOADED.clear()
        store = reopen_store(Path(said["store"]), said["shared"])
        options = DataOptions(**{**said["options"], "prompts": Path(said["options"]["prompts"])})
        target = TargetFiles(
            checkpoint_digest=said["checkpoint"],
            checkpoint_dir=store.fetch("checkpoints", said["checkpoint"]),
            tokenizer_dir=store.fetch("tokenizers", said["tokenizer"]),
        )
        model = target_model(target, options, store, said["threads"])
        _LOADED[key] = _Loaded(target, options, model, load_tokenizer(target.tokenizer_dir))
    return _LOADED[key]
