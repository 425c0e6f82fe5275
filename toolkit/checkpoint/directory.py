"""A Hugging Face model directory: config.json, safetensors in one file or by index, tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from toolkit.checkpoint.fp8 import QUANT_CONFIG
from toolkit.checkpoint.interfaces import ALL, Source, Stored, TensorInfo
from toolkit.checkpoint.safetensors_file import Span, read_header, read_rows
from toolkit.errors import CheckpointError

INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
_MAX_JSON = 64 << 20
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "consolidated.00.pth")


class DirectorySource(Source):
    """Tensors stay on disk; `read` opens the shard, reads the rows and closes it."""

    def __init__(self, directory: Path, name: str | None = None) -> None:
        self.directory = directory
        self.name = name or str(directory)
        self.config = read_json(directory / "config.json", self.name)
        if (directory / QUANT_CONFIG).is_file():
            self.config[QUANT_CONFIG] = read_json(directory / QUANT_CONFIG, self.name)
        self._spans = _spans(directory, self.name)
        self.tensors = {
            name: TensorInfo(name, span.shape, span.dtype.name)
            for name, (_, span) in self._spans.items()
        }

    def read(self, name: str, rows: slice = ALL, columns: slice = ALL) -> NDArray[Any]:
        path, span = self._spans[name]
        return read_rows(path, span, rows, columns)

    def stored(self, name: str) -> Stored:
        path, span = self._spans[name]
        return Stored(path, span.start, span.dtype.name)

    def tokenizer_files(self, out: Path) -> None:
        if not (self.directory / "tokenizer.json").is_file():
            raise CheckpointError(
                self.name,
                [
                    "tokenizer.json: missing; make one with transformers: "
                    "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
                ],
            )
        for file in TOKENIZER_FILES:
            if (self.directory / file).is_file():
                shutil.copyfile(inside(self.directory, file, self.name), out / file)
        if not (out / "generation_config.json").exists():
            ids = {key: self.config.get(key) for key in ("bos_token_id", "eos_token_id")}
            (out / "generation_config.json").write_text(json.dumps(ids) + "\n", encoding="utf-8")


def content_files(directory: Path, name: str) -> list[Path]:
    """The files that decide what comes out of a conversion, shards included."""
    fixed = [directory / file for file in ("config.json", QUANT_CONFIG, INDEX, *TOKENIZER_FILES)]
    shards = sorted(set(_shards(directory, name).values()))
    return [path for path in fixed if path.is_file()] + shards


def has_weights(directory: Path) -> bool:
    """Whether config.json and every file of weights that it goes with are there."""
    try:
        return (directory / "config.json").is_file() and bool(_shards(directory, str(directory)))
    except CheckpointError:
        return False


def read_json(path: Path, name: str) -> dict[str, Any]:
    """A JSON object from a file of sane size."""
    try:
        if not path.is_file():
            raise CheckpointError(name, [f"{path.name}: missing"])
        if path.stat().st_size > _MAX_JSON:
            raise CheckpointError(name, [f"{path.name}: larger than {_MAX_JSON >> 20} MiB"])
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(name, [f"{path.name}: not readable as JSON: {error}"]) from None
    if not isinstance(found, dict):
        raise CheckpointError(name, [f"{path.name}: not a JSON object"])
    return found


def _shards(directory: Path, name: str) -> dict[str | None, Path]:
    """Tensor name -> shard; {None: file} for a single file that names its own tensors."""
    if (directory / INDEX).is_file():
        return _indexed(directory, name)
    single = directory / "model.safetensors"
    found = [single] if single.exists() else sorted(directory.glob("*.safetensors"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise CheckpointError(name, [f"several safetensors files ({names}) and no {INDEX}"])
    if not found:
        pickled = [file for file in _PICKLED if (directory / file).exists()]
        way_out = (
            f"{pickled[0]} is a pickle, which can run code when it is opened; save it again with "
            "transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)"
            if pickled
            else f"expected model.safetensors or {INDEX}"
        )
        raise CheckpointError(name, [f"no safetensors file; {way_out}"])
    return {None: inside(directory, found[0].name, name)}


def _indexed(directory: Path, name: str) -> dict[str | None, Path]:
    index = read_json(directory / INDEX, name).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise CheckpointError(name, [f"{INDEX}: no weight_map"])
    problems: list[str] = []
    files: dict[str, Path] = {}
    for file in sorted({str(value) for value in index.values()}):
        try:
            files[file] = inside(directory, file, name)
        except CheckpointError as error:
            problems += [f"{INDEX}: {problem}" for problem in error.problems]
    if problems:
        raise CheckpointError(name, problems)
    return {tensor: files[str(file)] for tensor, file in index.items()}


def inside(directory: Path, file: str, name: str) -> Path:
    """A file of this directory, or of the hub cache whose snapshot this directory is."""
    path = directory / file
    if file != Path(file).name or file in ("", ".", ".."):
        raise CheckpointError(name, [f"shard {file!r} is not a plain file name"])
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise CheckpointError(name, [f"{file} is missing"]) from None
    home = directory.resolve()
    blobs = home.parents[1] / "blobs" if home.parent.name == "snapshots" else home
    if real.parent not in (home, blobs):
        raise CheckpointError(
            name, [f"{file} is a link that leads out of this directory; copy the file in"]
        )
    if not real.is_file():
        raise CheckpointError(name, [f"{file} is not a regular file"])
    return path


def _spans(directory: Path, name: str) -> dict[str, tuple[Path, Span]]:
    shards = _shards(directory, name)
    headers: dict[Path, dict[str, Span]] = {}
    problems: list[str] = []
    for path in sorted(set(shards.values())):
        try:
            headers[path] = read_header(path)
        except CheckpointError as error:
            problems += [f"{path.name}: {problem}" for problem in error.problems]
    spans: dict[str, tuple[Path, Span]] = {}
    for tensor, path in shards.items():
        if tensor is None:
            spans |= {key: (path, span) for key, span in headers.get(path, {}).items()}
        elif path in headers and tensor not in headers[path]:
            problems.append(f"{tensor}: not in {path.name}, where {INDEX} says it is")
        elif path in headers:
            spans[tensor] = (path, headers[path][tensor])
    if problems:
        raise CheckpointError(name, problems)
    return spans
