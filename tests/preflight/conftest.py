"""A folder of tiny models, heads and engines to check, on a machine without any heavy package."""

from __future__ import annotations

import sys

import pytest

from tests.commands.conftest import spectool
from tests.preflight.lab import Lab

__all__ = ["spectool"]


@pytest.fixture(autouse=True)
def _no_heavy_packages(monkeypatch):
    """As on a laptop: importing any of these fails."""
    for name in ("torch", "tensorrt_llm", "tensorrt", "openvino"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def lab(tmp_path) -> Lab:
    return Lab(tmp_path)
