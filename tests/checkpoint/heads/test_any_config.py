"""Whatever a head's config.json says, it is used or refused: nothing else comes out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny_heads as heads
from tests.tiny import hf_config
from toolkit.checkpoint.config import checkpoint_config
from toolkit.checkpoint.heads.head import HeadSpec
from toolkit.checkpoint.interfaces import Source, TensorInfo
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import ModelSpec
from toolkit.registry import HEADS

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([2**31, 10**12]),
    st.floats(allow_nan=True),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["rope_type", "factor", "x"]), st.integers(), max_size=2),
)
KEYS = {
    "eagle": (heads.eagle, heads.eagle_config, ["rope_theta", "rope_scaling", "rope_parameters",
                                                "head_dim", "draft_vocab_size", "eagle_config"]),
    "redrafter": (heads.redrafter, heads.redrafter_config, []),
    "medusa": (heads.medusa, dict, ["medusa_num_heads", "medusa_num_layers"]),
}  # fmt: skip


class FakeSource(Source):
    """Headers only."""

    def __init__(self, tensors, config):
        self.name, self.config = "heads", config
        self.tensors = {n: TensorInfo(n, t.shape, t.dtype.name) for n, t in tensors.items()}

    def read(self, name, rows=None, columns=None):
        raise AssertionError("a plan reads no weights")

    def tokenizer_files(self, out):
        raise AssertionError("heads have none")


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_plan_or_a_checkpoint_error(kind, data):
    tensors, config, more = KEYS[kind]
    given = config()
    for key in data.draw(st.sets(st.sampled_from([*given, *more] or ["x"]), max_size=3)):
        given[key] = data.draw(VALUES)
    base = checkpoint_config(hf_config("llama"), ModelSpec(checkpoint="m", dtype="float16"))
    spec = HeadSpec(kind=kind, checkpoint="heads", fields={"num_eagle_layers": 2})
    try:
        plan = HEADS[kind].plan(FakeSource(tensors(), given), base, spec)
    except CheckpointError:
        return
    assert plan.problems or plan.config["architecture"]
    assert len(plan.tensors) < 5000
