"""Target and heads -> one TensorRT-LLM checkpoint, checked as a whole before it is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.checkpoint.config import checkpoint_config, family_of
from toolkit.checkpoint.convert import FLOATS, placed
from toolkit.checkpoint.families.family import Place
from toolkit.checkpoint.fp8 import is_float8
from toolkit.checkpoint.heads.head import Head, HeadPlan, HeadSpec, HeadTensor
from toolkit.checkpoint.interfaces import ALL, Source, Stored, TensorInfo
from toolkit.checkpoint.safetensors_file import shown
from toolkit.checkpoint.write import Part, write_ranks
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import ModelSpec
from toolkit.registry import HEADS

_HEAD, _ZEROS = "heads: ", "zeros: "  # a colon: no tensor of a file that we read has one there


@dataclass(frozen=True)
class Combined:
    """Everything that will be written, and where to read it."""

    source: Source
    config: dict[str, Any]
    tensors: dict[str, list[Part]]


def convert_with_heads(
    source: Source, heads: Source, out: Path, spec: ModelSpec, head: HeadSpec
) -> None:
    """Write config.json and rank{r}.safetensors of the target with its heads into `out`."""
    combined = combine(source, heads, spec, head)
    out.mkdir(parents=True, exist_ok=True)
    write_ranks(combined.source, combined.tensors, combined.config, out)
    text = json.dumps(combined.config, indent=2) + "\n"
    (out / "config.json").write_text(text, encoding="utf-8")


def combine(source: Source, heads: Source, spec: ModelSpec, head: HeadSpec) -> Combined:
    """The whole checkpoint from headers alone; every problem of both in one error."""
    kind: Head = HEADS[head.kind]
    base = checkpoint_config(source.config, spec)
    if kind.architecture(base["architecture"], head.release) is None:
        number = ".".join(map(str, head.release))
        raise CheckpointError(
            spec.checkpoint,
            [
                f"config.json: architectures is {base['architecture']}; TensorRT-LLM {number} has "
                f"{head.kind} for {', '.join(kind.targets(head.release))}"
            ],
        )
    if is_float8(source.config):
        raise CheckpointError(
            spec.checkpoint,
            [f"the target is float8; {head.kind} heads are converted beside unquantised targets"],
        )
    if _same_place(spec, head):
        source, heads = _outside(source, kind.prefix), _inside(heads, kind.prefix, head.kind)
    problems: list[str] = []
    tensors = _of_target(source, base, spec, problems)
    plan = kind.plan(heads, base, head)
    problems += [f"heads {head.checkpoint}: {text}" for text in head_problems(plan, heads, base)]
    if problems:
        raise CheckpointError(spec.checkpoint, problems)
    joined = _Joined(source, heads)
    for wanted in plan.tensors:
        part = joined.part(wanted)
        tensors.setdefault(wanted.name, []).append(part)
    tensors |= {new: tensors[old] for new, old in plan.copies.items()}
    return Combined(joined, dict(plan.config), tensors)


def _same_place(spec: ModelSpec, head: HeadSpec) -> bool:
    return (spec.checkpoint, spec.revision) == (head.checkpoint, head.revision)


def _of_target(
    source: Source, base: Mapping[str, Any], spec: ModelSpec, problems: list[str]
) -> dict[str, list[Part]]:
    try:
        return placed(source, family_of(source.config, spec), base, spec)
    except CheckpointError as error:
        problems += error.problems
        return {}


def head_problems(plan: HeadPlan, heads: Source, base: Mapping[str, Any]) -> Iterator[str]:
    """What is missing, of another shape or dtype, does not split, or has no place."""
    yield from plan.problems
    tp = base["mapping"]["tp_size"]
    seen: set[str] = set()
    for wanted in plan.tensors:
        if wanted.source in seen:
            continue  # the same head once more
        seen.add(wanted.source)
        found = heads.tensors.get(wanted.source)
        if found is None:
            if not wanted.zeros:
                yield f"{wanted.source}: missing; expected shape {list(wanted.shape)}"
        elif found.shape != wanted.shape:
            yield (
                f"{wanted.source}: has shape {list(found.shape)}, expected {list(wanted.shape)} "
                "for this target"
            )
        elif found.dtype not in FLOATS:
            yield f"{wanted.source}: has dtype {found.dtype}, expected one of {', '.join(FLOATS)}"
        if wanted.split == "rows" and wanted.shape[0] % tp:
            yield f"{wanted.source}: parallel.tp {tp} does not divide its {wanted.shape[0]} rows"
    if plan.tensors:
        unknown = sorted(set(heads.tensors) - seen - plan.dropped)
        yield from (f"{shown(name)}: unexpected; no such head has this tensor" for name in unknown)


class _Joined(Source):
    """Target, heads and zeros under one roof; names of the heads carry a mark."""

    def __init__(self, target: Source, heads: Source) -> None:
        self.name, self.config = target.name, target.config
        self._target, self._heads = target, heads
        self._zeros: dict[str, tuple[int, ...]] = {}
        self.tensors = target.tensors

    def part(self, wanted: HeadTensor) -> Part:
        place = Place(name=wanted.name, shape=(), split=wanted.split)
        mark = _HEAD if wanted.source in self._heads.tensors else _ZEROS
        if mark == _ZEROS:
            self._zeros[wanted.source] = wanted.shape
        return Part(mark + wanted.source, place, wanted.shape, wanted.kv_heads)

    def read(self, name: str, rows: slice = ALL, columns: slice = ALL) -> NDArray[Any]:
        if name.startswith(_HEAD):
            return self._heads.read(name.removeprefix(_HEAD), rows, columns)
        if name.startswith(_ZEROS):
            zeros = np.zeros(self._zeros[name.removeprefix(_ZEROS)], np.float32)[rows]
            return zeros if columns == ALL else zeros[:, columns]
        return self._target.read(name, rows, columns)

    def stored(self, name: str) -> Stored | None:
        if name.startswith(_ZEROS):
            return None
        if name.startswith(_HEAD):
            return self._heads.stored(name.removeprefix(_HEAD))
        return self._target.stored(name)

    def tokenizer_files(self, out: Path) -> None:
        self._target.tokenizer_files(out)


class _Some(Source):
    """A source of which only some tensors are seen."""

    def __init__(
        self,
        whole: Source,
        tensors: Mapping[str, TensorInfo],
        config: dict[str, Any] | None = None,
    ) -> None:
        self.name, self.tensors = whole.name, tensors
        self.config = whole.config if config is None else config
        self._whole = whole

    def read(self, name: str, rows: slice = ALL, columns: slice = ALL) -> NDArray[Any]:
        return self._whole.read(name, rows, columns)

    def stored(self, name: str) -> Stored | None:
        return self._whole.stored(name)

    def tokenizer_files(self, out: Path) -> None:
        self._whole.tokenizer_files(out)


def _inside(source: Source, prefix: str, kind: str) -> Source:
    """The heads of a file that holds both; its config.json describes them under their kind."""
    own = source.config.get(kind)
    config = own if isinstance(own, dict) else source.config
    tensors = {n: t for n, t in source.tensors.items() if n.startswith(prefix)}
    return _Some(source, tensors, config)


def _outside(source: Source, prefix: str) -> Source:
    return _Some(source, {n: t for n, t in source.tensors.items() if not n.startswith(prefix)})
