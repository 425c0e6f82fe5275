"""What training computes at a depth is what a draft would compute there, token after token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from toolkit.training.batches import TrainingData, make_batch
from toolkit.training.decoder import Rotary, heads, linear, mlp, rms_norm
from toolkit.training.draft import DraftModel
from toolkit.training.head import HeadOptions, draft_ids, loss, matches

HIDDEN = 64


@pytest.fixture(scope="module")
def samples(data_dir):
    return TrainingData(data_dir, "train").samples[:3]


def made(target, name, **options):
    from toolkit.registry import HEAD_TRAINERS

    kind = HEAD_TRAINERS[name](target, HeadOptions(**options), np.arange(0, 250, 2))
    params = kind.start()
    draw = torch.Generator().manual_seed(3)
    moved = {n: p + 0.05 * torch.randn(p.shape, generator=draw) for n, p in params.items()}
    return kind, moved


def drafted(kind, params, sample, position, depth):
    """The chain head as it runs: a cache, one token after the other. States by depth.

    The draft begins behind `position`, the last one whose state the target has shown; tokens of the
    text take the place of what would be sampled.
    """
    s = kind.target.settings
    rotary = Rotary(s)
    tokens = torch.from_numpy(sample.tokens.astype(np.int64))
    whole = torch.from_numpy(sample.hidden.astype(np.float32))[None]
    keys, values, found = [], [], []

    class Only:
        captured, final = whole[..., :-HIDDEN], whole[..., -HIDDEN:]

    state = x = kind.first(params, Only)
    for at in range(position + depth):
        read = state[:, at : at + 1] if at <= position else x
        embedded = kind.embedding[tokens[at + 1]][None, None]
        inputs, residual = kind.join(params, embedded, read)
        where = torch.tensor([[at]])
        parts = (
            heads(linear(inputs, params, f"{kind.layer}self_attn.{n}_proj"), s.head_size)
            for n in "qkv"
        )
        q, k, v = parts
        q, k = rotary(q, where), rotary(k, where)
        keys.append(k)
        values.append(v)
        group = s.num_heads // s.num_kv_heads
        all_k = torch.cat(keys, 2).repeat_interleave(group, 1)
        all_v = torch.cat(values, 2).repeat_interleave(group, 1)
        y = torch.nn.functional.scaled_dot_product_attention(q, all_k, all_v)
        y = y.transpose(1, 2).flatten(2)
        x = residual + linear(y, params, kind.layer + "self_attn.o_proj")
        norm = params[kind.layer + "post_attention_layernorm.weight"]
        x = x + mlp(rms_norm(x, norm, s.norm_epsilon), params, kind.layer)
        if at >= position:
            found.append(kind.said(params, x)[0, 0])
    return found


@pytest.mark.parametrize("name", ["eagle3", "eagle"])
def test_depths_are_those_of_a_draft_with_a_cache(name, target, samples):
    kind, params = made(target, name)
    batch = make_batch(samples, HIDDEN)
    states = list(kind.states(params, batch, 3))
    for i, sample in enumerate(samples):
        for row in (0, 1, 5):  # the first token of the draft
            wanted = drafted(kind, params, sample, sample.prompt_length - 1 + row, 3)
            for depth, state in enumerate(wanted):
                np.testing.assert_allclose(
                    states[depth][i, row + depth].numpy(), state.numpy(), atol=2e-4, rtol=2e-4
                )


def test_medusa_heads_read_the_state_before_their_draft(target, samples):
    kind, params = made(target, "medusa", heads=3, head_layers=2)
    batch = make_batch(samples, HIDDEN)
    states = list(kind.states(params, batch, 3))
    x = torch.from_numpy(samples[1].hidden.astype(np.float32))[
        samples[1].prompt_length - 1 + 2, -HIDDEN:
    ]
    for layer in range(2):
        x = x + torch.nn.functional.silu(linear(x, params, f"2.{layer}.linear"))
    np.testing.assert_allclose(states[2][1, 4].numpy(), x.numpy(), atol=1e-5)


def test_medusa_begins_as_the_targets_own_next_token(target, samples):
    """Zero layers are the identity: every head says what lm_head says of its state."""
    kind, _ = made(target, "medusa", heads=2)
    batch = make_batch(samples, HIDDEN)
    [first, _] = kind.states(kind.start(), batch, 2)
    np.testing.assert_array_equal(first.numpy(), batch.at(batch.final).numpy())


def test_a_draft_of_all_but_no_layer_says_what_the_target_says(target, samples):
    """With every layer the state at t + 1 is the target's own: the parts are put together right."""
    layers = tuple(range(8))
    kind = DraftModel(target, HeadOptions(layers=layers[:1]), np.arange(250))
    kind.options = HeadOptions(layers=layers)
    params = {"model.norm.weight": target.norm}
    for i in layers:
        params |= {f"model.layers.{i}.{n}": t for n, t in target.layer(i).items()}
    batch = make_batch(samples, HIDDEN)
    [said] = kind.states(params, batch, 1)
    wanted = batch.at(batch.final, 1)
    error = (said - wanted)[batch.valid].abs().max() / wanted.abs().max()
    assert error < 0.01  # stored states are bfloat16


class TestLoss:
    def test_of_a_perfect_head_is_the_teachers_entropy(self, target, samples):
        """At depth 0, with the target's own state in the head's place and nothing hard."""
        kind, _ = made(target, "eagle3", hard=0.0)
        batch = make_batch(samples, HIDDEN)
        kind.states = lambda params, batch, depth: [batch.at(batch.final, 1)]
        value, right = loss(kind, {"lm_head.weight": kind.teacher}, batch, 1)
        learnable = batch.valid & (batch.labels % 2 == 0) & (batch.labels < 250)
        logits = batch.at(batch.final, 1)[learnable] @ target.lm_head[0:250:2].T
        p = torch.softmax(logits, -1)
        entropy = -(p * p.log()).sum(-1).mean()
        assert float(value) == pytest.approx(float(entropy), rel=1e-4)
        assert right.tolist() == [1.0]

    def test_padding_and_other_sequences_change_nothing(self, target, samples):
        kind, params = made(target, "eagle3")
        short = min(samples, key=lambda s: len(s.tokens))
        alone = matches(kind, params, make_batch([short], HIDDEN), 3)[:, 0]
        together = matches(kind, params, make_batch([*samples, short], HIDDEN), 3)[:, -1]
        assert (together[:, : alone.shape[1]] == alone).all()
        assert not together[:, alone.shape[1] :].any()

    def test_common_candidates_hold_every_label(self, target, samples):
        kind, _ = made(target, "eagle3")
        labels = torch.tensor([240, 248])
        assert kind.candidates(labels, 3).tolist() == [0, 1, 2, 120, 124]
        assert kind.candidates(labels, None) == slice(None)


def test_the_most_frequent_tokens_and_then_the_first():
    counts = np.array([0, 5, 0, 9, 0, 1])
    assert draft_ids(counts, 4).tolist() == [0, 1, 3, 5]
    assert draft_ids(counts, 2).tolist() == [1, 3]
    assert draft_ids(counts, None).tolist() == [0, 1, 2, 3, 4, 5]
