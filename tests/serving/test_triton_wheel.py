"""Finding a server, and saying what is missing before it would hang."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from toolkit.errors import MissingDependencyError
from toolkit.serving import triton_wheel
from toolkit.serving.triton_wheel import TritonWheel, find_triton, server_environment


def fake_wheel(root: Path) -> Path:
    """The files of nvidia-pytriton that are looked for."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in (
        "bin/tritonserver",
        "backends/python/libtriton_python.so",
        f"python_backend_stubs/{version}/triton_python_backend_stub",
    ):
        path = root / "tritonserver" / name
        path.parent.mkdir(parents=True)
        path.touch()
    return root


class FakeSpec:
    def __init__(self, root: Path) -> None:
        self.submodule_search_locations = [str(root)]


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    root = fake_wheel(tmp_path / "pytriton")
    monkeypatch.setattr(triton_wheel, "find_spec", lambda name: FakeSpec(root))
    return TritonWheel(root / "tritonserver")


def fake_ldd(tmp_path, monkeypatch, prints: str) -> None:
    program = tmp_path / "bin" / "ldd"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{prints}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(triton_wheel.shutil, "which", lambda name: str(program))


def test_without_the_wheel_the_message_is_a_command(monkeypatch):
    monkeypatch.setattr(triton_wheel, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'spectool\[triton\]'") as error:
        find_triton()
    assert error.value.exit_code == 3


def test_a_python_without_a_stub_is_named(wheel):
    wheel.stub.unlink()
    with pytest.raises(MissingDependencyError, match=r"use Python 3.10, 3.11 or 3.12"):
        find_triton()


def test_a_missing_libpython_is_an_error_not_a_hang(wheel, tmp_path, monkeypatch):
    fake_ldd(tmp_path, monkeypatch, "libpython3.11.so.1.0 => not found")
    with pytest.raises(MissingDependencyError, match="apt install libpython3") as error:
        find_triton()
    assert "libpython3.11.so.1.0 => not found" in str(error.value)


def test_another_missing_library_is_named(wheel, tmp_path, monkeypatch):
    fake_ldd(tmp_path, monkeypatch, "version GLIBC_2.34 not found")
    with pytest.raises(MissingDependencyError, match=r"needs glibc 2.34"):
        find_triton()


def test_a_whole_wheel_is_found_and_its_backend_linked(wheel, tmp_path, monkeypatch):
    fake_ldd(tmp_path, monkeypatch, "libc.so.6 => /lib/libc.so.6")
    found = find_triton()
    assert found == wheel
    found.link_backends(tmp_path / "backends")
    links = {path.name: path.resolve() for path in (tmp_path / "backends" / "python").iterdir()}
    assert links["triton_python_backend_stub"] == wheel.stub.resolve()
    assert "libtriton_python.so" in links


def test_the_stub_finds_this_python_first(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    environment = server_environment()
    assert environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert environment["PATH"].endswith("/usr/bin")
    assert environment["LD_LIBRARY_PATH"]
