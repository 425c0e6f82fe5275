"""Tiny models of every family, converted and built once for all tests of engines."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.tiny import write_checkpoint
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.source import open_source
from toolkit.engine.cpu import build_cpu_engine
from toolkit.recipe.schema import EngineLimits, ModelSpec

LIMITS = EngineLimits(max_batch_size=4, max_input_len=200, max_seq_len=256)


class Built(NamedTuple):
    """The same model three times over."""

    source: Path  # Hugging Face directory
    checkpoint: Path  # TensorRT-LLM's
    engine: Path


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Built]:
    """`build("llama", tp=2, dtype="bfloat16", config={...})`, each combination once."""

    @cache
    def _build(
        family: str, tp: int, pp: int, dtype: str, quantization: str | None, config: str
    ) -> Built:
        root = tmp_path_factory.mktemp(f"{family}-{dtype}-tp{tp}pp{pp}")
        source = write_checkpoint(root / "hf", family, scale=0.2, **_CONFIGS[config])
        spec = ModelSpec.model_validate(
            {
                "checkpoint": str(source),
                "dtype": dtype,
                "quantization": quantization,
                "parallel": {"tp": tp, "pp": pp},
            }
        )
        convert(open_source(str(source)), root / "checkpoint", spec)
        (root / "engine").mkdir()
        build_cpu_engine(root / "checkpoint", root / "engine", LIMITS)
        return Built(source, root / "checkpoint", root / "engine")

    def build(
        family: str = "llama",
        *,
        tp: int = 1,
        pp: int = 1,
        dtype: str = "float32",
        quantization: str | None = None,
        config: str = "plain",
    ) -> Built:
        return _build(family, tp, pp, dtype, quantization, config)

    return build


_CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "llama3 rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "tied": {"tie_word_embeddings": True},
    "wide heads": {"head_dim": 32},
    "one kv head": {"num_key_value_heads": 1},
    "sliding window": {"sliding_window": 256},
    "biases": {"attention_bias": True, "mlp_bias": True},
}
