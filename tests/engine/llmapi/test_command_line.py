"""What `spectool check` says about a recipe that a release would refuse or ignore."""

from __future__ import annotations

import json

import pytest

from tests.commands.conftest import spectool

__all__ = ["spectool"]

EAGLE3 = {"drafter": "eagle3", "heads": {"checkpoint": "org/head"}}
ROWS = [
    ("1.3.0rc24", EAGLE3, {"use_sa_spec": True}, "write sa_config: {threshold: 4}"),
    ("1.3.0rc24", EAGLE3, {"max_batch_size": 4}, "it stands at the top level of llm_args"),
    ("1.2.1", EAGLE3, {"pytorch_weights_path": "/d"}, "write speculative_model_dir"),
    ("1.3.0rc24", EAGLE3, {"acceptance_window": 9}, "write acceptance_rate_window_size"),
    ("1.2.1", {"drafter": "medusa", "heads": {"checkpoint": "o/h"}}, {}, "use backend: tensorrt"),
    ("1.2.1", {"drafter": "pard", "draft": {"checkpoint": "o/p"}}, {}, "it came with 1.3.0rc0"),
    ("1.2.1", {"drafter": "eagle3"}, {}, "speculation.heads: required"),
    ("0.17.0", {"drafter": "ngram"}, {}, "needs TensorRT-LLM 1.0 or newer"),
]


@pytest.mark.parametrize(("release", "speculation", "keys", "said"), ROWS)
def test_a_refusal_names_the_fix_and_the_line(spectool, tmp_path, release, speculation, keys, said):
    recipe = {
        "name": "t",
        "backend": "pytorch",
        "tensorrt_llm": release,
        "target": {"checkpoint": "org/target"},
        "speculation": speculation,
        "pytorch": {"speculative_config": keys},
    }
    path = tmp_path / "r.yaml"
    path.write_text(json.dumps(recipe, indent=1), encoding="utf-8")
    ran = spectool("check", path)
    assert ran.code == 2
    assert said in ran.err
    assert "(line " in ran.err
    assert "Traceback" not in ran.err


def test_all_traps_come_at_once(spectool, tmp_path):
    recipe = {
        "name": "t",
        "backend": "pytorch",
        "target": {"checkpoint": "org/target", "parallel": {"pp": 2}, "quantization": "fp8"},
        "speculation": {"drafter": "ngram", "draft_length": {"policy": "adaptive"}},
        "pytorch": {"overlap_scheduler": True, "attention_backend": "FLASHINFER"},
    }
    path = tmp_path / "r.yaml"
    path.write_text(json.dumps(recipe, indent=1), encoding="utf-8")
    ran = spectool("check", path)
    for where in (
        "target.parallel.pp", "target.quantization", "speculation.draft_length.policy",
        "pytorch.overlap_scheduler", "pytorch.block_reuse",
    ):  # fmt: skip
        assert where in ran.err
