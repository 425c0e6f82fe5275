"""The tritonserver inside the nvidia-pytriton wheel, made to start for this Python.

The wheel keeps one stub per Python version away from the backend that looks for it, so the backend
directory is put together from symbolic links. A stub that cannot load libpython makes the server
hang for ever in model loading, so that is found out before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from toolkit.errors import MissingDependencyError

_STUB = "triton_python_backend_stub"
_INSTALL = "pip install 'spectool[triton]'"


@dataclass(frozen=True)
class TritonWheel:
    """Where the wheel's parts lie."""

    root: Path

    @property
    def executable(self) -> Path:
        return self.root / "bin" / "tritonserver"

    @property
    def stub(self) -> Path:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return self.root / "python_backend_stubs" / version / _STUB

    def link_backends(self, directory: Path) -> None:
        """Make `directory` a backend directory: the python backend with this Python's stub."""
        python = directory / "python"
        python.mkdir(parents=True)
        for source in [*(self.root / "backends" / "python").iterdir(), self.stub]:
            (python / source.name).symlink_to(source)


def find_triton() -> TritonWheel:
    """The installed wheel, checked; MissingDependencyError says what to install."""
    spec = find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(
            f"a Triton server needs nvidia-pytriton; install it with: {_INSTALL}"
        )
    wheel = TritonWheel(Path(spec.submodule_search_locations[0]) / "tritonserver")
    if not wheel.executable.is_file():
        raise MissingDependencyError(
            f"{wheel.executable}: not there; install nvidia-pytriton again: {_INSTALL}"
        )
    if not wheel.stub.is_file():
        raise MissingDependencyError(
            f"nvidia-pytriton has no stub for Python {sys.version_info.major}."
            f"{sys.version_info.minor} ({wheel.stub} is not there); use Python 3.10, 3.11 or 3.12"
        )
    _check_libraries(wheel)
    return wheel


def server_environment() -> dict[str, str]:
    """This process's environment, so that a stub finds this Python and its packages."""
    environment = dict(os.environ)
    # The first python3 on PATH is the stub's prefix; libpython lies outside of a venv.
    _prepend(environment, "PATH", str(Path(sys.executable).parent))
    if library_dir := sysconfig.get_config_var("LIBDIR"):
        _prepend(environment, "LD_LIBRARY_PATH", library_dir)
    environment.pop("PYTHONHOME", None)
    # The pieces in which a request of megabytes arrives would otherwise stay in glibc's heaps, of
    # which every thread may have its own.
    environment.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 16))
    return environment


def _prepend(environment: dict[str, str], name: str, directory: str) -> None:
    rest = environment.get(name)
    environment[name] = f"{directory}{os.pathsep}{rest}" if rest else directory


def _check_libraries(wheel: TritonWheel) -> None:
    """Ask the loader what server and stub would miss."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return
    for program in (wheel.executable, wheel.stub):
        listing = subprocess.run(
            [ldd, str(program)],
            env=server_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        missing = sorted(
            {line.strip() for line in listing.stdout.splitlines() if "not found" in line}
            | {line.strip() for line in listing.stderr.splitlines() if "not found" in line}
        )
        if missing:
            raise MissingDependencyError(_missing_libraries(program, missing))


def _missing_libraries(program: Path, missing: list[str]) -> str:
    lines = "\n".join(f"  {line}" for line in missing)
    advice = "Triton's wheel needs glibc 2.34 and libstdc++ of GCC 12 (Debian 12, Ubuntu 22.04)"
    if any("libpython" in line for line in missing):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        advice = (
            f"this Python was built without its shared library; install libpython{version} "
            f"(apt install libpython{version}), or use a Python built with --enable-shared"
        )
    return f"{program.name} cannot start here:\n{lines}\n{advice}"
