"""From the place that a recipe names to the heads' tensors, and to what identifies them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from toolkit.bundled import located
from toolkit.checkpoint.directory import DirectorySource, content_files, has_weights, read_json
from toolkit.checkpoint.heads.head import Head, HeadSpec
from toolkit.checkpoint.heads.torch_file import TorchFile
from toolkit.checkpoint.interfaces import ALL, Source, Stored, TensorInfo
from toolkit.checkpoint.safetensors_file import read_header, read_rows
from toolkit.checkpoint.source import is_offline, kind_of
from toolkit.errors import CheckpointError, InputError
from toolkit.registry import HEADS
from toolkit.store import Store

HEAD_FILES = ("model.safetensors", "pytorch_model.bin")  # of heads that are only looked at
_CONTENT = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "config.json")


class HeadFile(Source):
    """Heads in a file of their own, safetensors or PyTorch's, beside an optional config.json."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.path = path
        config = path.parent / "config.json"
        self.config = read_json(config, name) if config.is_file() else {}
        self._torch = None if path.suffix == ".safetensors" else TorchFile(path)
        self._spans = {} if self._torch else read_header(path)
        self.tensors = (
            self._torch.tensors
            if self._torch
            else {n: TensorInfo(n, span.shape, span.dtype.name) for n, span in self._spans.items()}
        )

    def read(self, name: str, rows: slice = ALL, columns: slice = ALL) -> NDArray[Any]:
        if self._torch:
            return self._torch.read(name, rows, columns)
        return read_rows(self.path, self._spans[name], rows, columns)

    def stored(self, name: str) -> Stored | None:
        if self._torch:
            return None
        span = self._spans[name]
        return Stored(self.path, span.start, span.dtype.name)

    def tokenizer_files(self, out: Path) -> None:
        raise InputError(f"{self.name}: drafting heads have no tokenizer; the target's is used")


def open_heads(spec: HeadSpec, *, offline: bool | None = None) -> Source:
    """The heads' tensors, fetched first where they lie on the hub."""
    head: Head = HEADS[spec.kind]
    return open_head_files(spec.checkpoint, spec.revision, head.files, offline=offline)


def open_head_files(
    checkpoint: str,
    revision: str | None,
    files: Sequence[str] = HEAD_FILES,
    *,
    offline: bool | None = None,
) -> Source:
    """The same for heads that are not converted, only looked at."""
    directory = _directory(checkpoint, revision, files, offline)
    path = _weights(files, directory, checkpoint)
    return DirectorySource(directory, checkpoint) if path is None else HeadFile(path, checkpoint)


def heads_here(checkpoint: str, revision: str | None, files: Sequence[str]) -> bool:
    """Whether opening them would fetch nothing."""
    from toolkit.checkpoint import fetch

    if _kind(checkpoint) == "directory":
        return True
    directory = fetch.hub_directory(checkpoint, revision)
    if directory is None:
        return False
    return has_weights(directory) or any((directory / file).is_file() for file in files)


def heads_identity(spec: HeadSpec, *, store: Store | None = None) -> dict[str, Any] | None:
    """What decides the heads' tensors, for a digest; None: only the network could tell."""
    from toolkit.checkpoint.hashes import content_hashes

    if _kind(spec.checkpoint) == "hub":
        return _hub_identity(spec.checkpoint, spec.revision)
    directory = Path(located(spec.checkpoint)).expanduser()
    path = _weights(HEADS[spec.kind].files, directory, spec.checkpoint)
    files = content_files(directory, spec.checkpoint) if path is None else [path]
    config = directory / "config.json"
    files += [config] if config.is_file() and config not in files else []
    return {"files": content_hashes(files, (store or Store()).root)}


def head_files_identity(
    checkpoint: str, revision: str | None, store: Store
) -> dict[str, Any] | None:
    """The same for heads that are not converted into their target's checkpoint."""
    from toolkit.checkpoint.hashes import content_hashes

    if _kind(checkpoint) == "hub":
        return _hub_identity(checkpoint, revision)
    directory = Path(located(checkpoint)).expanduser()
    files = sorted({path for pattern in _CONTENT for path in directory.glob(pattern)})
    if not any(file.name != "config.json" for file in files):
        raise InputError(f"heads {checkpoint}: no weights; expected safetensors or .bin")
    return {"files": content_hashes(files, store.root)}


def _hub_identity(checkpoint: str, revision: str | None) -> dict[str, Any] | None:
    from toolkit.checkpoint import fetch

    commit = fetch.hub_commit(checkpoint, revision)
    return {"hub": checkpoint, "commit": commit} if commit else None


def _kind(checkpoint: str) -> str:
    try:
        kind: str = kind_of(located(checkpoint))
    except InputError:
        kind = "not there"
    if kind not in ("directory", "hub"):
        raise InputError(
            f"heads {checkpoint!r}: expected a directory with the heads' weights, or a hub id "
            f"(this is {kind})"
        )
    return kind


def _directory(
    checkpoint: str, revision: str | None, files: Sequence[str], offline: bool | None
) -> Path:
    from toolkit.checkpoint import fetch

    if _kind(checkpoint) == "directory":
        return Path(located(checkpoint)).expanduser()
    away = is_offline() if offline is None else offline
    return fetch.hub_snapshot(checkpoint, revision, offline=away, also=files)


def _weights(files: Sequence[str], directory: Path, name: str) -> Path | None:
    """The heads' own file; None where a Hugging Face model directory holds them."""
    named = [file for file in files if (directory / file).is_file()]
    for file in named:
        if file != "model.safetensors":
            return directory / file if _last_resort(file, directory) else None
    if named or _has_safetensors(directory):
        return None
    raise CheckpointError(name, [f"no weights; expected {' or '.join(files)}"])


def _last_resort(file: str, directory: Path) -> bool:
    """PyTorch files are read where there is no safetensors file."""
    return file.endswith(".safetensors") or not _has_safetensors(directory)


def _has_safetensors(directory: Path) -> bool:
    return any(directory.glob("*.safetensors"))
