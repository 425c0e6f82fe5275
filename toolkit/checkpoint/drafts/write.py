"""A prepared draft on disk: config.json and one model.safetensors, bytes as they were."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from io import FileIO
from math import prod
from pathlib import Path

import ml_dtypes  # noqa: F401 - numpy learns the name "bfloat16" from it
import numpy as np

from toolkit.checkpoint.copy_range import copy_range, write_all
from toolkit.checkpoint.drafts.eagle3 import DraftPlan, Eagle3Form, plan_eagle3
from toolkit.checkpoint.drafts.target import TargetFacts
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.safetensors_file import header_bytes
from toolkit.errors import BuildError, CheckpointError
from toolkit.progress import Progress, progress

WEIGHTS = "model.safetensors"
PREPARED_VERSION = 1  # goes into digests; bump when bytes change
_BLOCK = 8 << 20


def prepare_eagle3(heads: Source, target: TargetFacts, out: Path, form: Eagle3Form) -> DraftPlan:
    """The head as TensorRT-LLM loads it; CheckpointError with every problem before anything is
    written."""
    plan = plan_eagle3(heads, target, form)
    if plan.problems:
        raise CheckpointError(heads.name, plan.problems)
    out.mkdir(parents=True, exist_ok=True)
    write_tensors(heads, plan.tensors, out / WEIGHTS)
    text = json.dumps(dict(plan.config), indent=2, sort_keys=True) + "\n"
    (out / "config.json").write_text(text, encoding="utf-8")
    return plan


def write_tensors(source: Source, names: Mapping[str, str], path: Path) -> None:
    """One safetensors file of `names` (new name -> name in the source), streamed in this order."""
    infos = {new: source.tensors[old] for new, old in names.items()}
    header = header_bytes({new: (np.dtype(i.dtype), i.shape) for new, i in infos.items()})
    total = len(header) + sum(prod(i.shape) * np.dtype(i.dtype).itemsize for i in infos.values())
    free = shutil.disk_usage(path.parent).free
    if total > free:
        raise BuildError(
            f"{path.parent}: the draft takes {total / 1e9:.1f} GB, this disk has "
            f"{free / 1e9:.1f} GB free; free some or choose another disk with --store DIR"
        )
    with progress(f"prepare {source.name}", total) as bar, FileIO(path, "w") as file:
        write_all(file, memoryview(header))
        for old in names.values():
            _write(source, old, file, bar)


def _write(source: Source, name: str, file: FileIO, bar: Progress) -> None:
    info = source.tensors[name]
    itemsize = np.dtype(info.dtype).itemsize
    if stored := source.stored(name):
        for done in copy_range(stored.path, stored.start, prod(info.shape) * itemsize, file):
            bar.advance(done)
        return
    width = max(prod(info.shape[1:]) * itemsize, 1)
    rows = max(_BLOCK // width, 1)
    for first in range(0, info.shape[0] if info.shape else 1, rows):
        block = np.ascontiguousarray(source.read(name, slice(first, first + rows)))
        write_all(file, block.reshape(-1).view(np.uint8).data)
        bar.advance(block.nbytes)
