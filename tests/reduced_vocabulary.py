"""A model on disk, rewritten to say some of its tokens only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file


def reduce_vocabulary(directory: Path, ids: Sequence[int], **config: Any) -> Path:
    """Keep the rows of `ids` in the lm_head of the Hugging Face model in `directory`, in order."""
    [file] = directory.glob("*.safetensors")
    tensors = load_file(file)
    said = np.asarray(ids, np.int64)
    rows = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    tensors["lm_head.weight"] = np.ascontiguousarray(rows[said])
    tensors["d2t"] = said - np.arange(len(said))
    save_file(tensors, file)
    words = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    words |= {"lm_head_rows": len(said), "tie_word_embeddings": False, **config}
    (directory / "config.json").write_text(json.dumps(words), encoding="utf-8")
    return directory
