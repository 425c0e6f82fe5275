"""Whatever stands in a recipe, a person gets a message: no other exception comes out."""

import copy

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkit.errors import InputError
from toolkit.recipe.load import load_recipe
from toolkit.registry import DRAFTERS

BASE = {
    "name": "x",
    "backend": "cpu",
    "target": {"checkpoint": "org/model", "parallel": {"tp": 1}, "layers": [0]},
    "speculation": {"drafter": "draft_target", "draft": {"checkpoint": "org/draft"}},
    "engine": {"max_batch_size": 1, "max_seq_len": 4096},
    "tune": {"k": "2..8", "prompts": {"a": "code"}, "sampling": {"temperature": 1.0}},
    "serve": {"layout": "bls", "http_port": 1},
}
PLACES = [
    (), ("name",), ("target",), ("target", "checkpoint"), ("target", "layers"), ("speculation",),
    ("speculation", "drafter"), ("speculation", "draft"), ("speculation", "draft_length"),
    ("engine", "max_seq_len"), ("tune", "k"), ("tune", "prompts"), ("tune", "sampling"),
    ("serve", "http_port"), ("extends",), ("new", "section"),
]  # fmt: skip
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["1..3", "~", ".", "/", "a/b", "pip:", "p.gguf", "..", *DRAFTERS])
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["drafter", "checkpoint", "tp", "min", "k", ""]), inner)
    ),
    max_leaves=6,
)


def put(data, path, value):
    for part in path[:-1]:
        if not isinstance(data.get(part), dict):
            data[part] = {}
        data = data[part]
    if path:
        data[path[-1]] = value
    elif isinstance(value, dict):
        data.update(value)


def outcome(path, *overrides):
    try:
        load_recipe(str(path), overrides)
    except InputError:
        return "refused"
    return "accepted"


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(PLACES), values), min_size=1, max_size=3))
def test_any_value_anywhere(tmp_path_factory, changes):
    data = copy.deepcopy(BASE)
    for path, value in changes:
        put(data, path, value)
    file = tmp_path_factory.mktemp("fuzz") / "r.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    assert outcome(file) in ("accepted", "refused")


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_any_text(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("fuzz") / "r.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert outcome(file) == "refused"


@settings(max_examples=150)
@given(st.sampled_from([".".join(path) for path in PLACES]) | st.text(max_size=10), values)
def test_any_override(tmp_path_factory, key, value):
    file = tmp_path_factory.mktemp("fuzz") / "r.yaml"
    file.write_text(yaml.safe_dump(BASE), encoding="utf-8")
    flow = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n")
    assert outcome(file, f"{key}={flow}") in ("accepted", "refused")
