"""What a directory of weights is, whatever a recipe takes it for.

Upstream's own sample names an EAGLE-3 head as the model of its draft-target method: it loads as a
Llama of one layer with a missing embedding, or not at all. Names and config tell the two apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolkit.checkpoint.directory import DirectorySource
from toolkit.checkpoint.small_files import open_small_files
from toolkit.checkpoint.source import kind_of
from toolkit.errors import CheckpointError

_EAGLE3_NAMES = re.compile(r"midlayer\..+|d2t|t2d|(.*\.)?hidden_norm\.weight")
_EAGLE3_CLASS = re.compile(r"(?i)eagle-?3")
_WHOLE_MODEL = re.compile(r"(model\.)?layers\.[1-9]\d*\..+|model\.embed_tokens\.weight")


def refuse_head_as_model(
    checkpoint: str, revision: str | None = None, *, offline: bool | None = None
) -> None:
    """Raise CheckpointError when what a recipe names as a draft model is an EAGLE-3 head.

    config.json decides, and headers where they are on this disk: no weights are fetched.
    """
    kind = kind_of(checkpoint)
    if kind not in ("directory", "hub"):
        return  # a GGUF file holds whole models only
    if kind == "directory" and not (Path(checkpoint).expanduser() / "config.json").is_file():
        return  # whoever opens the model says so
    small = open_small_files(checkpoint, revision, offline=offline)
    signs = eagle3_signs(small.config, _names(small.directory))
    if signs:
        raise CheckpointError(
            checkpoint,
            [
                f"is an EAGLE-3 head ({', '.join(signs[:3])}), not a model of its own: it reads "
                "the target's hidden states; use drafter: eagle3 with heads: {checkpoint: "
                f"{checkpoint}}}, or name a whole, smaller model of the target's family"
            ],
        )


def _names(directory: Path) -> list[str]:
    """The tensors, where they can be seen without opening a pickle."""
    try:
        return list(DirectorySource(directory).tensors)
    except CheckpointError:
        return []


def reduced_vocabulary_problem(config: Mapping[str, Any]) -> str | None:
    """Why TensorRT-LLM cannot run this model, where its lm_head says some tokens only."""
    said = config.get("lm_head_rows")
    if said is None:
        return None
    return (
        f"says {said} of {config.get('vocab_size')} tokens (lm_head_rows and d2t), and "
        "TensorRT-LLM's models have no such map; use backend: cpu, or distill it again without "
        "--draft-vocab"
    )


def eagle3_signs(config: Mapping[str, Any], names: Iterable[str] = ()) -> list[str]:
    """What shows that this is an EAGLE-3 head; empty when nothing does."""
    if config.get("lm_head_rows") is not None:
        return []  # a whole model with a reduced vocabulary has d2t too
    signs = []
    if config.get("speculators_model_type") == "eagle3":
        signs.append("speculators_model_type eagle3")
    for name in _names_of_classes(config):
        if _EAGLE3_CLASS.search(name):
            signs.append(f"architectures {name}")
    if config.get("draft_vocab_size") is not None:
        signs.append(f"draft_vocab_size {config['draft_vocab_size']}")
    if isinstance(config.get("eagle_config"), Mapping):
        signs.append("eagle_config")
    return signs + sorted(name for name in names if _EAGLE3_NAMES.fullmatch(name))[:3]


def whole_model_signs(names: Iterable[str]) -> list[str]:
    """What shows that these tensors are a language model of its own, not a head."""
    return sorted(name for name in names if _WHOLE_MODEL.fullmatch(name))[:2]


def _names_of_classes(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []
