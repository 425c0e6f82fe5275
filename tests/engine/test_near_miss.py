"""An engine that differs only in machine or versions is named, with every value that differs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.trtllm.recipes import made
from toolkit.engine import cpu
from toolkit.engine.near_miss import near_misses
from toolkit.engine.trtllm import build
from toolkit.engine.trtllm.machine import Machine
from toolkit.recipe.schema import EngineLimits
from toolkit.store import Store

LIMITS = EngineLimits(max_batch_size=2, max_input_len=32, max_seq_len=64)
CPU = ("engine_version", "openvino")
TENSORRT = ("tensorrt_llm", "tensorrt", "cuda", "gpu")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def put(store, spec):
    """A store entry of a made engine."""
    return store.publish("engines", spec, lambda out: (out / "engine").write_bytes(b"x")).path


def tensorrt_spec(checkpoint="c0", flags=None, **machine):
    numbers = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1", "cuda": "12.9", "sm": 90, **machine}
    here = Machine(program=Path("trtllm-build"), gpus=("0",), **numbers)
    return build.engine_spec(checkpoint, made("ngram", flags=flags or {}), "target", here.spec())


def cpu_spec(monkeypatch, checkpoint="c0", version=2, openvino="2026.4.1", limits=LIMITS):
    monkeypatch.setattr(cpu, "ENGINE_VERSION", version)
    monkeypatch.setattr(cpu, "openvino_version", lambda: openvino)
    return cpu.engine_spec(checkpoint, limits)


def test_another_gpu_is_named_with_both_architectures(store):
    path = put(store, tensorrt_spec(sm=90))
    (miss,) = near_misses(store.entries(), tensorrt_spec(sm=89), TENSORRT)
    assert miss.path == path
    assert miss.differences == {"gpu": ("sm_90", "sm_89")}
    assert str(miss) == f"{path} is not reused: gpu sm_90 -> sm_89 (found -> needed)"


def test_every_value_that_differs_is_named(store):
    put(store, tensorrt_spec(tensorrt_llm="1.2.0", tensorrt="10.13", cuda=None, sm=80))
    (miss,) = near_misses(store.entries(), tensorrt_spec(), TENSORRT)
    assert str(miss).endswith(
        "tensorrt_llm 1.2.0 -> 1.2.1, tensorrt 10.13 -> 10.14.1, cuda unknown -> 12.9, "
        "gpu sm_80 -> sm_90 (found -> needed)"
    )


def test_the_nearest_comes_first(store):
    far = put(store, tensorrt_spec(sm=80, cuda="12.8"))
    near = put(store, tensorrt_spec(sm=80))
    found = near_misses(store.entries(), tensorrt_spec(), TENSORRT)
    assert [miss.path for miss in found] == [near, far]


@pytest.mark.parametrize(
    "other",
    [
        {"checkpoint": "c1", "sm": 80},
        {"flags": {"gemm_plugin": "float16"}, "sm": 80},
        {},  # the very engine
    ],
)
def test_another_engine_and_the_engine_itself_are_no_near_misses(store, other):
    put(store, tensorrt_spec(**other))
    assert near_misses(store.entries(), tensorrt_spec(), TENSORRT) == []


def test_another_openvino_and_another_engine_version(store, monkeypatch):
    put(store, cpu_spec(monkeypatch, version=1, openvino="2026.3.0"))
    (miss,) = near_misses(store.entries(), cpu_spec(monkeypatch), CPU)
    assert miss.differences == {"engine_version": (1, 2), "openvino": ("2026.3.0", "2026.4.1")}
    larger = LIMITS.model_copy(update={"max_seq_len": 128})
    assert near_misses(store.entries(), cpu_spec(monkeypatch, limits=larger), CPU) == []
    assert near_misses(store.entries(), tensorrt_spec(), TENSORRT) == []


def test_a_damaged_manifest_is_passed_over(store):
    entries = [{"kind": "engines", "spec": "?", "path": "x"}, {"spec": {}, "path": "y"}]
    assert near_misses(entries, tensorrt_spec(), TENSORRT) == []


values = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 1), max_size=5)


@given(values, values)
def test_it_is_one_exactly_when_nothing_but_the_machine_differs(found, needed):
    entry = {"spec": found, "path": "x"}
    misses = near_misses([entry], needed, "ab")
    same = all(found.get(name, -1) == needed.get(name, -1) for name in "cde")
    changed = {name for name in "ab" if found.get(name) != needed.get(name)}
    assert bool(misses) == (same and bool(changed))
    assert not misses or misses[0].differences.keys() == changed
