"""The one door to optional packages: imported where used, and an error names the extra."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from toolkit.errors import MissingDependencyError


def require(module: str, *, extra: str, why: str) -> ModuleType:
    """Import an optional package where it is used, or say which extra brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # the package is here, one of its own imports is not: show that traceback
        raise MissingDependencyError(
            f"{why} needs {module}; install it with: pip install 'spectool[{extra}]'"
        ) from None
