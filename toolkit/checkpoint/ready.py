"""Checkpoints that are in TensorRT-LLM's layout already: checked strictly, then copied.

config.json           architecture, dtype, sizes, mapping, quantization
rank{r}.safetensors   one for every rank of mapping
quant_cfg.json        beside quant_algo MIXED_PRECISION only

NVIDIA ModelOpt writes them (AWQ, NVFP4, FP8, SmoothQuant), and so do TensorRT-LLM's own
converters and `spectool convert`. They have no tokenizer.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from toolkit.checkpoint.config import is_size
from toolkit.checkpoint.copy_range import copy_range
from toolkit.checkpoint.directory import inside, read_json
from toolkit.checkpoint.read import MATRIX, Checkpoint, is_float
from toolkit.checkpoint.safetensors_file import Span, read_header
from toolkit.errors import BuildError, CheckpointError
from toolkit.progress import progress
from toolkit.recipe.schema import ModelSpec
from toolkit.registry import FAMILIES

CONFIG, QUANT_CFG = "config.json", "quant_cfg.json"
_RANK = re.compile(r"rank(0|[1-9][0-9]{0,4})\.safetensors")
_DTYPES = ("float16", "bfloat16", "float32")
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_OPTIONAL_SIZES = ("num_key_value_heads", "intermediate_size", "head_size")
# What trtllm-build quantises itself, from float weights too.
WEIGHT_ONLY = ("W8A16", "W4A16")
# A recipe's word -> what config.json may say; a word that is not here is quant_algo's own.
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "fp8": ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"),
    "awq": ("W4A16_AWQ", "W4A8_AWQ"),
    "gptq": ("W4A16_GPTQ", "W8A16_GPTQ"),
    "smoothquant": (
        "W8A8_SQ_PER_CHANNEL",
        "W8A8_SQ_PER_TENSOR_PLUGIN",
        "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
        "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
        "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN",
    ),
}
_SHOWN = 12


class ReadyCheckpoint:
    """What its config.json and its headers say; the tensors stay where they are."""

    def __init__(self, directory: Path, name: str, config: dict[str, Any]) -> None:
        self.directory = directory
        self.name = name
        self.config = config  # with the defaults of keys that the file leaves out
        self.ranks: list[dict[str, Span]] = []

    @property
    def quantized(self) -> bool:
        """Whether matrices hold something else than floating point values."""
        return any(MATRIX.search(n) and not is_float(s) for rank in self.ranks
                   for n, s in rank.items())  # fmt: skip


def is_ready(directory: Path) -> bool:
    """Whether a directory is such a checkpoint, perhaps a broken one."""
    if any(_RANK.fullmatch(path.name) for path in directory.glob("rank*.safetensors")):
        return True
    try:
        config = read_json(directory / CONFIG, str(directory))
    except CheckpointError:
        return False
    return isinstance(config.get("architecture"), str) and "architectures" not in config


def ready_files(directory: Path) -> list[Path]:
    """Every file that is copied, as far as it is there."""
    ranks = [path for path in directory.glob("rank*.safetensors") if _RANK.fullmatch(path.name)]
    ranks.sort(key=lambda path: int(path.stem.removeprefix("rank")))
    fixed = [directory / CONFIG, directory / QUANT_CFG]
    return [path for path in (*fixed, *ranks) if path.is_file()]


def open_ready(spec: ModelSpec, *, heads: str | None = None) -> ReadyCheckpoint:
    """The checkpoint, if it is whole and what the recipe says it is; else every problem at once.

    `heads` names the kind of drafting heads that the recipe wants in it.
    """
    directory = Path(spec.checkpoint).expanduser()
    config = _with_defaults(read_json(directory / CONFIG, spec.checkpoint))
    ready = ReadyCheckpoint(directory, spec.checkpoint, config)
    problems = list(_wrong_config(config, directory))
    if not problems:
        problems += _disagreements(config, spec, heads)
        problems += _read_ranks(ready)
    if ready.ranks:
        problems += _wrong_tensors(ready)
    if problems:
        more = len(problems) - _SHOWN
        tail = [f"and {more} more of the kind"] if more > 0 else []
        raise CheckpointError(spec.checkpoint, problems[:_SHOWN] + tail)
    return ready


def copy_ready(ready: ReadyCheckpoint, out: Path) -> None:
    """Copy it into `out`, sharing blocks where the file system can; never linked, never moved."""
    files = ready_files(ready.directory)
    total, free = sum(path.stat().st_size for path in files), shutil.disk_usage(out).free
    if total > free:
        raise BuildError(
            f"{out}: the checkpoint takes {total / 1e9:.1f} GB, this disk has {free / 1e9:.1f} GB "
            "free; free some or choose another disk with --store DIR"
        )
    with progress(f"copy {ready.name}", total) as bar:
        for path in files:
            with FileIO(out / path.name, "w") as file:
                for done in copy_range(path, 0, path.stat().st_size, file):
                    bar.advance(done)


def _with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """As TensorRT-LLM's PretrainedConfig fills in what the file leaves out."""
    found = {key: value for key, value in config.items() if value is not None}
    heads, hidden = found.get("num_attention_heads"), found.get("hidden_size")
    defaults: dict[str, Any] = {"mapping": {}, "quantization": {}, "num_key_value_heads": heads}
    if is_size(hidden) and is_size(heads):
        defaults |= {"intermediate_size": 4 * hidden, "head_size": hidden // heads}
    return {**config, **{key: found.get(key, value) for key, value in defaults.items()}}


def _wrong_config(config: Mapping[str, Any], directory: Path) -> Iterator[str]:
    if not isinstance(config.get("architecture"), str):
        yield (
            f"{CONFIG}: architecture is {config.get('architecture')!r}, expected the name that a "
            "TensorRT-LLM checkpoint has there (Hugging Face's config.json is another file)"
        )
    if config.get("dtype") not in _DTYPES:
        yield f"{CONFIG}: dtype is {config.get('dtype')!r}, expected {', '.join(_DTYPES)}"
    for key in (*_SIZES, *(key for key in _OPTIONAL_SIZES if config.get(key) is not None)):
        if not is_size(config.get(key)):
            yield f"{CONFIG}: {key} is {config.get(key)!r}, expected a positive integer"
    for key in ("mapping", "quantization"):
        if not isinstance(config[key], dict):
            yield f"{CONFIG}: {key} is {config[key]!r}, expected an object"
            return
    yield from _wrong_mapping(config["mapping"])
    algorithm = config["quantization"].get("quant_algo")
    if algorithm is not None and not isinstance(algorithm, str):
        yield f"{CONFIG}: quantization.quant_algo is {algorithm!r}, expected a name or null"
    if algorithm == "MIXED_PRECISION" and not (directory / QUANT_CFG).is_file():
        yield f"{QUANT_CFG}: missing; quant_algo MIXED_PRECISION says layer by layer what it is"


def _wrong_mapping(mapping: Mapping[str, Any]) -> Iterator[str]:
    sizes = {key: mapping.get(key, 1) for key in ("tp_size", "pp_size", "cp_size", "world_size")}
    wrong = {key: value for key, value in sizes.items() if not is_size(value)}
    for key, value in wrong.items():
        yield f"{CONFIG}: mapping.{key} is {value!r}, expected a positive integer"
    if wrong:
        return
    tp, pp, cp, world = sizes.values()
    if cp != 1:
        yield f"{CONFIG}: mapping.cp_size is {cp}; context parallelism is not built here"
    if world != tp * pp * cp:
        yield (
            f"{CONFIG}: mapping.world_size is {world}, but tp_size {tp} x pp_size {pp} x cp_size "
            f"{cp} is {tp * pp * cp}"
        )
    elif world > 1024:
        yield f"{CONFIG}: mapping.world_size is {world}, at most 1024"


def _disagreements(config: Mapping[str, Any], spec: ModelSpec, heads: str | None) -> Iterator[str]:
    """What the recipe says otherwise; each with both values and the way out."""
    if config["dtype"] != spec.dtype:
        yield (
            f"{CONFIG}: dtype is {config['dtype']}, the recipe's is {spec.dtype}; set dtype: "
            f"{config['dtype']}"
        )
    for key, wanted in {"tp": spec.parallel.tp, "pp": spec.parallel.pp}.items():
        found = config["mapping"].get(f"{key}_size", 1)
        if found != wanted:
            yield (
                f"{CONFIG}: mapping.{key}_size is {found}, the recipe's parallel.{key} is "
                f"{wanted}; set parallel.{key}: {found}, or write the checkpoint again for {wanted}"
            )
    algorithm = config["quantization"].get("quant_algo")
    if _plain(algorithm) not in algorithms_of(spec.quantization):
        yield (
            f"{CONFIG}: quantization.quant_algo is {_plain(algorithm) or 'null'}, the recipe's "
            f"quantization is {spec.quantization or 'null'}; set quantization: {_word(algorithm)}"
        )
    if spec.layers is not None:
        yield f"layers: {list(spec.layers)}; such a checkpoint is taken whole: remove it"
    if heads:
        yield (
            f"{heads} heads are converted together with their target: name the original "
            "(Hugging Face) weights as target.checkpoint"
        )


def algorithms_of(word: str | None) -> tuple[str | None, ...]:
    """What quant_algo may be where a recipe says `word`."""
    if word is None:
        return (None,)
    return ALGORITHMS.get(word.lower(), (word.upper(),))


def _plain(algorithm: Any) -> str | None:
    return None if algorithm in (None, "NO_QUANT") else str(algorithm)


def _word(algorithm: Any) -> str:
    """What a recipe says for a quant_algo."""
    plain = _plain(algorithm)
    if plain is None:
        return "null"
    return next((word for word, algos in ALGORITHMS.items() if plain in algos), plain.lower())


def _read_ranks(ready: ReadyCheckpoint) -> list[str]:
    """Every rank's header; the problems of all files."""
    mapping = ready.config["mapping"]
    world = mapping.get("tp_size", 1) * mapping.get("pp_size", 1)
    headers: list[dict[str, Span]] = []
    problems: list[str] = []
    for rank in range(world):
        file = f"rank{rank}.safetensors"
        if not (ready.directory / file).exists():
            problems.append(f"{file}: missing; mapping.world_size is {world}")
            continue
        try:
            headers.append(read_header(inside(ready.directory, file, ready.name)))
        except CheckpointError as error:
            problems += [f"{file}: {problem}" for problem in error.problems]
    names = {path.name for path in ready_files(ready.directory)} - {CONFIG, QUANT_CFG}
    for file in sorted(names - {f"rank{rank}.safetensors" for rank in range(world)}):
        problems.append(f"{file}: left over; mapping.world_size is {world}")
    if not problems:
        ready.ranks = headers
    return problems


def _wrong_tensors(ready: ReadyCheckpoint) -> Iterator[str]:
    if ready.config["architecture"] in FAMILIES:
        try:
            yield from Checkpoint(ready.directory).problems()
        except CheckpointError as error:
            yield from error.problems
    yield from _without_scales(ready)
    algorithm = _plain(ready.config["quantization"].get("quant_algo"))
    if algorithm and algorithm not in WEIGHT_ONLY and not ready.quantized:
        yield (
            f"{CONFIG}: quantization.quant_algo is {algorithm}, but every matrix is floating "
            "point: nothing is quantised here"
        )
    if not algorithm and ready.quantized:
        yield (
            f"{CONFIG}: quantization.quant_algo is null, but there are quantised matrices; take "
            "the config.json that belongs to them"
        )


def _without_scales(ready: ReadyCheckpoint) -> Iterator[str]:
    """A quantised matrix means nothing without its scales."""
    for rank, tensors in enumerate(ready.ranks):
        scaled = {name.rpartition(".")[0] for name in tensors if "scal" in name.rpartition(".")[2]}
        for name, span in tensors.items():
            if MATRIX.search(name) and not is_float(span) and name[:-7] not in scaled:
                yield f"rank{rank}.safetensors: {name} is {span.dtype.name} and has no scales"
