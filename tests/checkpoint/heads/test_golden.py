"""What the upstream converters write for tiny targets with heads, and what ours writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_heads as heads
from tests.tiny import LLAMA3_ROPE, write_checkpoint
from toolkit.checkpoint.heads.combine import convert_with_heads
from toolkit.checkpoint.heads.head import HeadSpec
from toolkit.checkpoint.heads.source import open_heads
from toolkit.checkpoint.safetensors_file import read_header
from toolkit.checkpoint.source import open_source
from toolkit.recipe.schema import ModelSpec, Parallel

GOLDEN = Path(__file__).parents[2] / "golden"
# Constants that a loader makes for itself, and that upstream's Medusa converter never writes.
OPTIONAL = {"embed_positions", "embed_positions_for_gpt_attention", "rotary_inv_freq"}
# Only these keys are accepted by every release.
SAFE = {
    "mapping": ("world_size", "tp_size", "pp_size"),
    "quantization": ("quant_algo", "kv_cache_quant_algo"),
}
# TensorRT-LLM's name -> (kind of head, family of the target, its changes, the heads' own fields)
MEDUSA_FIELDS = {"max_draft_len": 63}
EAGLE_FIELDS = {"max_draft_len": 63, "num_eagle_layers": 4, "max_non_leaves_per_layer": 10}
SHORT_FIELDS = {"max_draft_len": 31, "num_eagle_layers": 2, "max_non_leaves_per_layer": 10}
REDRAFTER_FIELDS = {
    "redrafter_num_beams": 4,
    "redrafter_draft_len_per_beam": 5,
    "redrafter_greedy_search": True,
}
LLAMA31 = {"rope_scaling": LLAMA3_ROPE}
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "medusa_tp1": ("medusa", "llama", {}, MEDUSA_FIELDS),
    "medusa_tp2": ("medusa", "llama", {}, MEDUSA_FIELDS),
    "medusa31": ("medusa", "llama", LLAMA31, MEDUSA_FIELDS),
    "medusaq2": ("medusa", "qwen2", {}, MEDUSA_FIELDS),
    "eagle_tp1": ("eagle", "llama", {}, EAGLE_FIELDS),
    "eagle_tp2": ("eagle", "llama", {}, SHORT_FIELDS),
    "eagle31": ("eagle", "llama", LLAMA31, EAGLE_FIELDS),
    "eagle_tied": ("eagle", "llama", {"tie_word_embeddings": True}, EAGLE_FIELDS),
    "redrafter": ("redrafter", "llama", {}, REDRAFTER_FIELDS),
}


def write_case(directory: Path, kind: str) -> str:
    if kind == "medusa":
        return heads.write_heads(directory, heads.medusa(), {}, "medusa_lm_head.safetensors")
    if kind == "eagle":
        return heads.write_heads(directory, heads.eagle(), heads.eagle_config())
    return heads.write_heads(directory, heads.redrafter(), heads.redrafter_config())


@pytest.fixture(params=CASES)
def converted(request, tmp_path):
    """(name of the case, what upstream wrote, the directory that we wrote)"""
    kind, family, changes, fields = CASES[request.param]
    golden = json.loads((GOLDEN / f"ckpt_{request.param}.json").read_text())
    model = str(write_checkpoint(tmp_path / "model", family, **changes))
    spec = ModelSpec(
        checkpoint=model,
        dtype=golden["config"]["dtype"],
        parallel=Parallel(tp=golden["config"]["mapping"]["tp_size"]),
    )
    head = HeadSpec(
        kind=kind,
        checkpoint=write_case(tmp_path / "heads", kind),
        fields=fields,
        release=(0, 16),
    )
    convert_with_heads(open_source(model), open_heads(head), tmp_path / "out", spec, head)
    return request.param, golden, tmp_path / "out"


def comparable(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json with only those mapping and quantization keys that every release accepts."""
    safe = {
        section: {key: config[section][key] for key in keys}
        for section, keys in SAFE.items()
        if section in config
    }
    inner = config.get("eagle_net_config")
    return config | safe | ({"eagle_net_config": comparable(inner)} if inner else {})


def test_config_has_upstreams_fields(converted):
    name, golden, out = converted
    ours, theirs = json.loads((out / "config.json").read_text()), comparable(golden["config"])
    if name in ("medusa31", "eagle31"):
        # Upstream keeps the kind of scaling only, and so computes another rotary embedding.
        assert theirs["rotary_scaling"] == {"type": "llama3"}
        theirs["rotary_scaling"] = LLAMA3_ROPE
        if "eagle_net_config" in theirs:
            theirs["eagle_net_config"]["rotary_scaling"] = LLAMA3_ROPE
    if name == "medusaq2":
        # Qwen's own fields, which upstream's Medusa converter forgets.
        extra = set(ours) - set(theirs)
        assert {"attn_bias", "use_logn_attn", "head_size", "moe"} <= extra
        assert ours["attn_bias"] is True
        ours = {key: value for key, value in ours.items() if key not in extra}
    assert ours == theirs


def test_every_rank_file_has_upstreams_names_shapes_and_dtypes(converted):
    _, golden, out = converted
    assert {path.name for path in out.glob("*.safetensors")} == set(golden["ranks"])
    for file, tensors in golden["ranks"].items():
        theirs = {
            name: (tuple(shape), dtype.removeprefix("torch."))
            for name, (shape, dtype) in tensors.items()
            if name not in OPTIONAL
        }
        ours = {n: (span.shape, span.dtype.name) for n, span in read_header(out / file).items()}
        assert ours == theirs
