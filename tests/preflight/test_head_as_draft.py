"""The sample that misled many: an EAGLE-3 head named as the model of the draft-target method."""

from __future__ import annotations

import pytest

from tests import tiny_heads as heads


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("backend", ["cpu", "tensorrt"])
def test_an_eagle3_head_as_a_draft_model_is_one_problem_with_the_way_out(
    spectool, lab, backend, file
):
    heads.write_heads(lab.folder / "draft", heads.eagle3(), heads.eagle3_config())
    # Nobody needs to open the weights, so any bytes will do for PyTorch's.
    (lab.folder / "draft" / "model.safetensors").rename(lab.folder / "draft" / file)
    lab.set("backend", backend)
    lab.data["speculation"] = {
        "drafter": "draft_target",
        "max_draft_len": 4,
        "draft": {"checkpoint": "./draft", "dtype": "float16"},
    }
    ran = spectool("check", lab.path())
    assert ran.code == 2
    assert "1 problem(s)" in ran.err
    assert "  draft: is an EAGLE-3 head (draft_vocab_size 128" in ran.err
    assert "use drafter: eagle3 with heads: {checkpoint: " in ran.err
    assert "Traceback" not in ran.err
