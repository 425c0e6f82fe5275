"""Heads' graphs against the formulas of their papers, written out in numpy from the files."""

import numpy as np
import pytest

from tests import tiny, tiny_heads
from tests.tiny import HEAD, HEADS, HIDDEN, KV_HEADS, VOCAB
from toolkit.backends.cpu.heads import CpuFeatureHead, CpuParallelHeads
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.heads.source import open_head_files
from toolkit.checkpoint.read import EMBEDDING, LM_HEAD, Checkpoint
from toolkit.checkpoint.source import open_source
from toolkit.engine.directory import read_engine
from toolkit.engine.heads import eagle, eagle3, medusa
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import EngineLimits, ModelSpec
from toolkit.speculation.interfaces import Step

LIMITS = EngineLimits(max_batch_size=4, max_input_len=200, max_seq_len=256)
EPSILON = 1e-6
T = 20


def norm(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * weight


def rotate(x):  # [T, heads, D]
    angles = np.outer(np.arange(len(x)), 10000.0 ** (-np.arange(0, HEAD, 2) / HEAD))
    angles = np.concatenate([angles, angles], 1)[:, None]
    first, last = np.split(x, 2, axis=-1)
    return x * np.cos(angles) + np.concatenate([-last, first], -1) * np.sin(angles)


def attention(x, w, name):
    q, k, v = (x @ w[f"{name}self_attn.{p}_proj.weight"].T for p in "qkv")
    q, k = rotate(q.reshape(T, HEADS, HEAD)), rotate(k.reshape(T, KV_HEADS, HEAD))
    k, v = (np.repeat(a.reshape(T, KV_HEADS, HEAD), HEADS // KV_HEADS, 1) for a in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(HEAD)
    scores[:, ~np.tril(np.ones((T, T), bool))] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("hij,jhd->ihd", weights, v).reshape(T, -1)
    return mixed @ w[f"{name}self_attn.o_proj.weight"].T


def mlp(x, w, name):
    gate = x @ w[f"{name}mlp.gate_proj.weight"].T
    up = x @ w[f"{name}mlp.up_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * up) @ w[f"{name}mlp.down_proj.weight"].T


def wide(tensors):
    return {name: t.astype(np.float64) for name, t in tensors.items()}


@pytest.fixture
def target(build):
    return Checkpoint(build("llama").checkpoint)


@pytest.fixture
def deep(tmp_path):
    """A target with layers enough to capture three of them."""
    tiny.write_checkpoint(tmp_path / "deep", "llama", num_hidden_layers=6)
    model = ModelSpec(checkpoint=str(tmp_path / "deep"), dtype="float32")
    convert(open_source(model.checkpoint), tmp_path / "checkpoint", model)
    return Checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def inputs():
    rng = np.random.default_rng(3)
    return rng.integers(0, VOCAB, T), rng.standard_normal((T, HIDDEN)).astype(np.float32)


def run(engine, tokens, features):
    head = CpuFeatureHead(read_engine(engine), VOCAB)
    step = Step(head.open(), tokens, rows=T, hidden=True, features=features)
    [output] = head.forward([step])
    return head, output


def test_eagle3_is_the_papers_layer(deep, inputs, tmp_path):
    tensors = tiny_heads.eagle3(draft_vocab=40)
    tensors["d2t"] = (3 * np.arange(40)).astype(np.int64)  # tokens 0, 4, 8, ...
    tensors["t2d"] = np.isin(np.arange(VOCAB), 4 * np.arange(40))
    where = tiny_heads.write_heads(tmp_path / "head", tensors, tiny_heads.eagle3_config(40))
    (tmp_path / "engine").mkdir()
    reads = (0, 2, 4)
    config = tiny_heads.eagle3_config(
        40, eagle_config={"eagle_aux_hidden_state_layer_ids": list(reads)}
    )
    tiny_heads.write_heads(tmp_path / "head", tensors, config)
    eagle3.build(open_head_files(where, None), deep, tmp_path / "engine", LIMITS, reads)
    tokens, features = inputs
    head, output = run(tmp_path / "engine", tokens, features)

    w, name = wide(tensors), "midlayer."
    embedded = deep.tensor(EMBEDDING).astype(np.float64)[tokens]
    both = np.concatenate(
        [
            norm(embedded, w[name + "input_layernorm.weight"]),
            norm(features, w[name + "hidden_norm.weight"]),
        ],
        1,
    )
    x = features + attention(both, w, name)
    x = x + mlp(norm(x, w[name + "post_attention_layernorm.weight"]), w, name)
    logits = norm(x, w["norm.weight"]) @ w["lm_head.weight"].T
    np.testing.assert_allclose(output.hidden, x, atol=1e-4)
    np.testing.assert_allclose(output.logits, logits, atol=1e-4)
    assert head.target_ids.tolist() == [4 * i for i in range(40)]
    captured = np.random.default_rng(4).standard_normal((5, 3 * HIDDEN)).astype(np.float32)
    np.testing.assert_allclose(head.fuse(captured), captured @ w["fc.weight"].T, atol=1e-4)


def test_eagle_is_the_papers_layer(target, inputs, tmp_path):
    tensors = tiny_heads.eagle()
    where = tiny_heads.write_heads(tmp_path / "head", tensors, tiny_heads.eagle_config())
    (tmp_path / "engine").mkdir()
    eagle.build(open_head_files(where, None), target, tmp_path / "engine", LIMITS, (2,))
    tokens, features = inputs
    _, output = run(tmp_path / "engine", tokens, features)

    w, name = wide(tensors), "layers.0."
    embedded = w["embed_tokens.weight"][tokens]
    x = np.concatenate([embedded, features], 1) @ w["fc.weight"].T + w["fc.bias"]
    x = x + attention(x, w, name)
    x = x + mlp(norm(x, w[name + "post_attention_layernorm.weight"]), w, name)
    np.testing.assert_allclose(output.hidden, x, atol=1e-4)
    wanted = x @ target.tensor(LM_HEAD).astype(np.float64).T
    np.testing.assert_allclose(output.logits, wanted, atol=1e-4)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
def test_medusa_is_residual_layers_and_an_lm_head(target, inputs, tmp_path, shared, prefix):
    tensors = tiny_heads.medusa(heads=3, layers=2, prefix=prefix)
    if shared:  # the target's lm_head, of which only some rows are drafted
        tensors = {n: t for n, t in tensors.items() if not n.endswith(".2.weight")}
        tensors["d2t"] = np.arange(30, dtype=np.int64)
    where = tiny_heads.write_heads(tmp_path / "head", tensors, {})
    (tmp_path / "engine").mkdir()
    medusa.build(open_head_files(where, None), target, tmp_path / "engine", LIMITS, (2,))
    heads = CpuParallelHeads(read_engine(tmp_path / "engine"), VOCAB, threads=1)
    _, hidden = inputs
    found = heads.logits(hidden)

    w = wide(tensors)
    lm_head = target.tensor(LM_HEAD).astype(np.float64)[heads.target_ids]
    for h in range(3):
        x = hidden.astype(np.float64)
        for layer in range(2):
            name = f"{prefix}{h}.{layer}.linear."
            y = x @ w[name + "weight"].T + w[name + "bias"]
            x = x + y / (1 + np.exp(-y))
        own = lm_head if shared else w[f"{prefix}{h}.2.weight"]
        np.testing.assert_allclose(found[:, h], x @ own.T, atol=1e-4)
    ids = list(range(0, 60, 2)) if shared else list(range(VOCAB))
    assert heads.target_ids.tolist() == ids


class TestWrongHeads:
    """Of another target: refused by name and shape, and nothing is written."""

    def refused(self, build, heads, target, out, reads):
        out.mkdir()
        with pytest.raises(CheckpointError) as error:
            build(heads, target, out, LIMITS, reads)
        assert list(out.iterdir()) == []
        return str(error.value)

    def test_eagle3(self, target, tmp_path):
        tensors = tiny_heads.eagle3(draft_vocab=40)
        tensors["d2t"][-1] = VOCAB
        config = tiny_heads.eagle3_config(40, hidden_size=2 * HIDDEN)
        heads = open_head_files(tiny_heads.write_heads(tmp_path / "head", tensors, config), None)
        said = self.refused(eagle3.build, heads, target, tmp_path / "engine", (1, 0, 0))
        assert "fc.weight: has shape [64, 192], expected [128, 192]" in said
        assert "d2t" in said

    def test_eagle3_of_other_layers(self, deep, tmp_path):
        tensors = tiny_heads.eagle3(draft_vocab=40)
        config = tiny_heads.eagle3_config(
            40, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 4]}
        )
        heads = open_head_files(tiny_heads.write_heads(tmp_path / "head", tensors, config), None)
        said = self.refused(eagle3.build, heads, deep, tmp_path / "engine", (1, 2, 2))
        assert "set speculation.eagle3_layers_to_capture to [0, 1, 4]" in said

    def test_eagle(self, target, tmp_path):
        tensors = tiny_heads.eagle()
        tensors["fc.weight"] = np.zeros((HIDDEN, 3 * HIDDEN), np.float16)
        heads = tiny_heads.write_heads(tmp_path / "head", tensors, tiny_heads.eagle_config())
        said = self.refused(
            eagle.build, open_head_files(heads, None), target, tmp_path / "engine", (2,)
        )
        assert "EAGLE-3 head" in said

    def test_medusa(self, target, tmp_path):
        tensors = tiny_heads.medusa(heads=2)
        tensors["1.1.weight"] = np.zeros((VOCAB + 1, HIDDEN), np.float16)
        del tensors["0.0.linear.bias"]
        heads = tiny_heads.write_heads(tmp_path / "head", tensors, {})
        said = self.refused(
            medusa.build, open_head_files(heads, None), target, tmp_path / "engine", (2,)
        )
        assert "0.0.linear.bias: missing; expected shape [64]" in said
        assert "1.1.weight: has shape [251, 64], expected [250, 64] for this target" in said
