"""Files that a command writes for the user to edit: never over something that is there."""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import BuildError, InputError


def write_new(path: Path, text: str) -> None:
    """Create `path`, or refuse because it exists or cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path}: exists already; choose another name or remove it") from None
    except OSError as error:
        raise BuildError(f"{path}: cannot be written: {error.strerror or error}") from None
