"""What the upstream converters write for tiny models, and what ours writes for the same ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import LLAMA3_ROPE, write_checkpoint
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.safetensors_file import read_header
from toolkit.checkpoint.source import open_source
from toolkit.recipe.schema import ModelSpec, Parallel

GOLDEN = Path(__file__).parents[1] / "golden"
# Constants that a loader makes for itself, and that upstream's other converters never write.
OPTIONAL = {"embed_positions", "embed_positions_for_gpt_attention", "rotary_inv_freq"}
# Only these keys are accepted by every release.
SAFE = {
    "mapping": {"world_size", "tp_size", "pp_size"},
    "quantization": {"quant_algo", "kv_cache_quant_algo"},
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, int], str | None]] = {
    "llama_tp1": ("llama", {}, {}, None),
    "llama_tp2": ("llama", {}, {"tp": 2}, None),
    "llama_tp4": ("llama", {}, {"tp": 4}, None),
    "llama_pp2": ("llama", {}, {"pp": 2}, None),
    "llama_tied_tp2": ("llama", {"tie_word_embeddings": True}, {"tp": 2}, None),
    "llama_bf16": ("llama", {}, {}, None),
    "llama31": ("llama", {"rope_scaling": LLAMA3_ROPE}, {}, None),
    "w8_fp": ("llama", {}, {}, "w8a16"),
    "mistral": ("mistral", {}, {}, None),
    "qwen2": ("qwen2", {}, {"tp": 2}, None),
    "gemma": ("gemma", {}, {}, None),
}


@pytest.fixture(params=CASES)
def converted(request, tmp_path):
    """(what upstream wrote, the directory that we wrote)"""
    family, changes, parallel, quantization = CASES[request.param]
    golden = json.loads((GOLDEN / f"ckpt_{request.param}.json").read_text())
    model = str(write_checkpoint(tmp_path / "model", family, **changes))
    spec = ModelSpec(
        checkpoint=model,
        dtype=golden["config"]["dtype"],
        quantization=quantization,
        parallel=Parallel(**parallel),
    )
    convert(open_source(model), tmp_path / "out", spec)
    return golden, tmp_path / "out"


def test_config_has_upstreams_fields_and_no_others(converted):
    golden, out = converted
    ours = json.loads((out / "config.json").read_text())
    theirs = dict(golden["config"])
    for section, keys in SAFE.items():
        assert set(ours[section]) == keys
        theirs[section] = {key: theirs[section][key] for key in keys}
    assert ours == theirs


def test_every_rank_file_has_upstreams_names_shapes_and_dtypes(converted):
    golden, out = converted
    assert {path.name for path in out.glob("*.safetensors")} == set(golden["ranks"])
    for file, tensors in golden["ranks"].items():
        theirs = {
            name: (tuple(shape), dtype.removeprefix("torch."))
            for name, (shape, dtype) in tensors.items()
            if name not in OPTIONAL
        }
        ours = {n: (span.shape, span.dtype.name) for n, span in read_header(out / file).items()}
        assert ours == theirs


def test_other_readers_accept_our_files(converted):
    from safetensors import safe_open

    golden, out = converted
    for file, tensors in golden["ranks"].items():
        with safe_open(out / file, framework="np") as opened:
            assert set(opened.keys()) == set(tensors) - OPTIONAL
