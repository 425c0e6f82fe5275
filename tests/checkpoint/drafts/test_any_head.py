"""Whatever stands in a head's config.json or header: a plan, or sentences; never a traceback."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.drafts.layouts import LAYOUTS, TARGET, core, llama_config
from toolkit.checkpoint.drafts.eagle3 import Eagle3Form, plan_eagle3
from toolkit.checkpoint.drafts.kinds import eagle3_signs
from toolkit.checkpoint.drafts.target import target_facts
from toolkit.checkpoint.interfaces import ALL, Source, TensorInfo
from toolkit.errors import CheckpointError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["float16", "default", "llama3", 1, 2, 64, 128]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
KEYS = sorted(
    {key for make in LAYOUTS.values() for key in make()[1]}
    | {"head_dim", "eagle_config", "norm_before_fc", "fc_norm", "rope_parameters", "bias", "dtype"}
    | {"target_hidden_size", "kv_lora_rank", "quantization_config", "text_config"}
)


class ArraySource(Source):
    """A head that was never written to disk."""

    def __init__(self, tensors, config):
        self.name, self.config, self._arrays = "head", config, tensors
        self.tensors = {n: TensorInfo(n, a.shape, a.dtype.name) for n, a in tensors.items()}

    def read(self, name, rows=ALL, columns=ALL):
        return self._arrays[name][rows]

    def tokenizer_files(self, out):
        raise AssertionError("heads have none")


@settings(max_examples=300, deadline=None)
@given(layout=st.sampled_from(sorted(LAYOUTS)), key=st.sampled_from(KEYS), value=VALUES)
def test_any_value_of_any_key(layout, key, value):
    tensors, config = LAYOUTS[layout]()
    place = config.get("transformer_layer_config", config) if key == "hidden_size" else config
    place[key] = value
    plan = plan_eagle3(ArraySource(tensors, config), TARGET, Eagle3Form())
    assert all(isinstance(problem, str) and problem for problem in plan.problems)
    eagle3_signs(config, tensors)


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from([*core(), "t2d", "embed_tokens.weight", "fc.bias", "input_norm.weight"]),
    shape=st.lists(st.integers(0, 130), max_size=3),
    dtype=st.sampled_from(["float16", "int64", "int32", "bool", "uint8", "float64"]),
    switch=st.sampled_from(["norm_before_fc", "fc_norm", "other"]),
)
def test_any_shape_and_dtype_of_any_tensor(name, shape, dtype, switch):
    tensors = core() | {name: np.zeros(shape, dtype)}
    config = llama_config(draft_vocab_size=128, **{switch: True})
    plan = plan_eagle3(ArraySource(tensors, config), TARGET, Eagle3Form(release=(1, 3)))
    assert all(isinstance(problem, str) and problem for problem in plan.problems)


@settings(max_examples=200, deadline=None)
@given(
    offsets=st.lists(st.integers(-600, 600), min_size=128, max_size=128),
    mask=st.none() | st.lists(st.booleans(), min_size=512, max_size=512),
)
def test_a_map_passes_exactly_when_it_is_one(offsets, mask):
    """Against a definition in sets: into the target, one to one, and t2d marks the image."""
    tensors = core() | {"d2t": np.array(offsets)}
    if mask is not None:
        tensors["t2d"] = np.array(mask)
    ids = [i + offset for i, offset in enumerate(offsets)]
    good = len(set(ids)) == 128 and all(0 <= i < 512 for i in ids)
    if mask is not None:
        good = good and {i for i, marked in enumerate(mask) if marked} == set(ids)
    source = ArraySource(tensors, llama_config(draft_vocab_size=128))
    assert (plan_eagle3(source, TARGET, Eagle3Form()).problems == ()) == good


@pytest.mark.parametrize("seed", range(20))
def test_every_order_of_draft_tokens_is_a_map(seed):
    rng = np.random.default_rng(seed)
    ids = rng.choice(512, size=128, replace=False)
    tensors = core() | {"d2t": ids - np.arange(128), "t2d": np.isin(np.arange(512), ids)}
    source = ArraySource(tensors, llama_config(draft_vocab_size=128))
    assert plan_eagle3(source, TARGET, Eagle3Form()).problems == ()


@settings(max_examples=200, deadline=None)
@given(
    key=st.sampled_from(
        ["hidden_size", "vocab_size", "num_hidden_layers", "rope_theta", "rope_scaling",
         "rope_parameters", "text_config", "torch_dtype", "max_position_embeddings"]
    ),
    value=VALUES,
)  # fmt: skip
def test_any_target(key, value):
    tensors, config = LAYOUTS["SafeAILab"]()
    try:
        facts = target_facts(llama_config(num_hidden_layers=8) | {key: value}, "target")
    except CheckpointError:
        return
    plan_eagle3(ArraySource(tensors, config), facts, Eagle3Form())
