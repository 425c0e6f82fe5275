"""Where shipped files lie: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import InputError

BUNDLED = "bundled:"
_PACKAGE = Path(__file__).resolve().parent


def bundled(folder: str) -> Path:
    """The shipped folder `recipes` or `triton_repo`."""
    inside = _PACKAGE / "_bundled" / folder
    return inside if inside.is_dir() else _PACKAGE.parent / folder


def located(checkpoint: str) -> str:
    """A checkpoint as a recipe names it; `bundled:smollm2/heads/eagle3` lies among the recipes."""
    if not checkpoint.startswith(BUNDLED):
        return checkpoint
    root = bundled("recipes").resolve()
    path = (root / checkpoint.removeprefix(BUNDLED)).resolve()
    if not path.is_relative_to(root) or not path.is_dir():
        raise InputError(f"checkpoint {checkpoint!r}: no such directory among spectool's recipes")
    return str(path)
