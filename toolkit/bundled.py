"""Where shipped files lie: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def bundled(folder: str) -> Path:
    """The shipped folder `recipes` or `triton_repo`."""
    inside = _PACKAGE / "_bundled" / folder
    return inside if inside.is_dir() else _PACKAGE.parent / folder
