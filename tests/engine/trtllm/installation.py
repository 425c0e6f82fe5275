"""A made-up machine with TensorRT-LLM: programs on PATH that answer as the real ones do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


class FakeInstallation:
    """`bin/` with trtllm-build, its Python and nvidia-smi; `calls` is what was built."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin, self.site = root / "bin", root / "site"
        self._calls, self._patch = root / "calls", monkeypatch
        self.bin.mkdir(parents=True)
        self.program("python", f'#!/bin/sh\nPYTHONPATH={self.site} exec {sys.executable} "$@"\n')
        self.install("1.2.1")
        self.gpus("9.0")
        (self.site / "torch").mkdir(parents=True, exist_ok=True)
        (self.site / "torch" / "__init__.py").write_text("raise RuntimeError('imported')\n")
        (self.site / "torch" / "version.py").write_text("cuda: Optional[str] = '12.9'\n")
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        monkeypatch.setenv("FAKE_CALLS", str(self._calls))
        monkeypatch.delenv("FAKE_MODE", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def install(self, version: str, tensorrt: str = "10.14.1") -> None:
        """Another release in place of the one before."""
        for old in self.site.glob("*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        for name, number in {"tensorrt_llm": version, "tensorrt": tensorrt}.items():
            info = self.site / f"{name}-{number}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
            )
        self.program(
            "trtllm-build",
            f"#!{self.bin}/python\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            "from tests.engine.trtllm.fake_trtllm_build import main\n"
            f"raise SystemExit(main({version!r}))\n",
        )

    def gpus(self, *capabilities: str) -> None:
        lines = "".join(f"{text}\\n" for text in capabilities)
        self.program("nvidia-smi", f"#!/bin/sh\nprintf '{lines}'\n")

    def remove(self, name: str) -> None:
        (self.bin / name).unlink()

    def behave(self, mode: str) -> None:
        """ok, slow, noisy, half, other, hang, killed, or a message to fail with."""
        self._patch.setenv("FAKE_MODE", mode)

    @property
    def calls(self) -> list[dict[str, Any]]:
        text = self._calls.read_text() if self._calls.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def pids(self) -> list[int]:
        """Of a build that hangs: itself and its worker."""
        path = self._calls.with_name("pids")
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []
