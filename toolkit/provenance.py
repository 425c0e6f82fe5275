"""Which versions made an artefact: recorded beside it, never part of its digest."""

from __future__ import annotations

import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from toolkit import __version__

_PACKAGES = (
    "numpy",
    "ml_dtypes",
    "torch",
    "openvino",
    "tokenizers",
    "gguf",
    "tensorrt_llm",
    "tensorrt",
    "nvidia-pytriton",
)


def package_version(name: str) -> str | None:
    """The installed version of a distribution, without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def provenance() -> dict[str, Any]:
    """Versions, platform, command line and time of the run that makes an artefact."""
    found = {name: package_version(name) for name in _PACKAGES}
    return {
        "spectool": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: number for name, number in found.items() if number},
        "argv": sys.argv,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
