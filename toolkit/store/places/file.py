"""`file://`: a directory that several machines mount."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from toolkit.store.places.place import Place


class FilePlace(Place):
    """Objects are files; one appears by a rename or a link, never half-written."""

    package: ClassVar[str] = "fsspec"
    extra: ClassVar[str] = "s3"

    def failures(self) -> tuple[type[Exception], ...]:
        return ()

    def modified(self, info: Mapping[str, Any]) -> float:
        return float(info["mtime"])

    def _write(self, path: str, data: bytes) -> None:
        self._place(Path(path), data, os.replace)

    def _create(self, path: str, data: bytes) -> None:
        self._place(Path(path), data, os.link)  # fails where the name is taken

    def _place(self, path: Path, data: bytes, put: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            put(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
