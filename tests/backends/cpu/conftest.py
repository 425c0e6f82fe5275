"""One tiny float32 engine, loaded once; every test opens its own sequences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engine_fixtures import LIMITS, write_tiny_model
from toolkit.backends.cpu.backend import CpuBackend
from toolkit.backends.cpu.model import CpuModel
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.source import open_source
from toolkit.engine.cpu import build_cpu_engine
from toolkit.recipe.schema import EngineLimits, ModelSpec
from toolkit.speculation.interfaces import Step


def build_tiny(
    root: Path,
    *,
    dtype: str = "float32",
    stored: str = "float32",
    quantization: str | None = None,
    limits: EngineLimits = LIMITS,
) -> Path:
    """An engine below `root`, of the same weights every time (rounded to `stored`)."""
    source = write_tiny_model(root / "hf", dtype=stored)
    spec = ModelSpec.model_validate(
        {"checkpoint": str(source), "dtype": dtype, "quantization": quantization}
    )
    convert(open_source(str(source)), root / "checkpoint", spec)
    (root / "engine").mkdir()
    build_cpu_engine(root / "checkpoint", root / "engine", limits)
    return root / "engine"


@pytest.fixture(scope="session")
def engine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def loaded(engine_dir: Path) -> CpuModel:
    return CpuBackend().load(engine_dir)


@pytest.fixture
def model(loaded: CpuModel) -> Iterator[CpuModel]:
    """The engine with no open sequence, and checked to be so again afterwards."""
    before = loaded.free_blocks
    yield loaded
    for seq in list(loaded._sequences):
        loaded.close(seq)
    assert loaded.free_blocks == before


def tokens(count: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 256, count)


def whole(model: CpuModel, text: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits of every token, in one pass over a sequence of its own: [T, V]."""
    seq = model.open()
    (output,) = model.forward([Step(seq, text, rows=len(text))])
    model.close(seq)
    return output.logits
