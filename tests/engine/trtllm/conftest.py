"""Fixtures: a machine with a made-up TensorRT-LLM, and checkpoints for it."""

import json
from pathlib import Path

import pytest

from tests.engine.trtllm.golden_flags import GOLDEN
from tests.engine.trtllm.installation import FakeInstallation


@pytest.fixture
def installation(tmp_path, monkeypatch):
    return FakeInstallation(tmp_path / "machine", monkeypatch)


@pytest.fixture
def checkpoint(tmp_path):
    """The checkpoint that a golden engine was built from, weights left out."""

    def write(golden: str = "engine016_draft") -> Path:
        directory = tmp_path / f"checkpoint-{golden}"
        directory.mkdir()
        config = json.loads((GOLDEN / f"{golden}.json").read_text())["config"]
        (directory / "config.json").write_text(json.dumps(config["pretrained_config"]))
        return directory

    return write
