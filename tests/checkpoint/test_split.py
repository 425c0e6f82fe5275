"""Cutting and joining are inverses, for any sizes that can be cut at all."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.checkpoint.split import shard, stage_layers


@st.composite
def heads_and_ranks(draw):
    kv_heads = draw(st.integers(1, 6))
    tp = draw(st.sampled_from([n for n in range(1, 13) if n % kv_heads == 0 or kv_heads % n == 0]))
    group = draw(st.integers(1, 3))
    # query heads are a multiple of both, as config.json is checked for
    return kv_heads, int(np.lcm(kv_heads, tp)) * group, tp


def cut(whole, split, tp, kv_heads):
    """What each rank would hold, by numpy's own means."""
    if split == "kv_heads" and kv_heads < tp:
        heads = whole.reshape(kv_heads, -1, whole.shape[1])
        return list(np.repeat(heads, tp // kv_heads, axis=0))
    if split == "vocab":
        padding = np.zeros((-len(whole) % tp, whole.shape[1]), whole.dtype)
        whole = np.concatenate([whole, padding])
    if split == "whole":
        return [whole] * tp
    return np.split(whole, tp, axis=1 if split == "columns" else 0)


def held(whole, mine):
    part = whole[mine.start : mine.stop, mine.left : mine.right]
    return np.concatenate([part, np.zeros((mine.pad, part.shape[1]), whole.dtype)])


def check(split, shape, tp, kv_heads):
    whole = np.arange(1, np.prod(shape) + 1).reshape(shape)
    joined = np.zeros_like(whole)
    for rank, theirs in enumerate(cut(whole, split, tp, kv_heads)):
        mine = shard(split, shape, tp, rank, kv_heads=kv_heads)
        np.testing.assert_array_equal(held(whole, mine), theirs)
        joined[mine.start : mine.stop, mine.left : mine.right] = theirs[: mine.stop - mine.start]
    np.testing.assert_array_equal(joined, whole)


@given(heads_and_ranks(), st.integers(1, 4), st.integers(1, 5))
def test_heads_split_and_join_to_themselves(sizes, head, columns):
    kv_heads, heads, tp = sizes
    check("rows", (heads * head, columns), tp, kv_heads)
    check("kv_heads", (kv_heads * head, columns), tp, kv_heads)
    check("columns", (columns, heads * head), tp, kv_heads)
    check("whole", (heads * head, columns), tp, kv_heads)


@given(st.integers(1, 300), st.integers(1, 16), st.integers(1, 3))
def test_any_vocabulary_splits_with_padding_and_joins(vocab, tp, columns):
    check("vocab", (vocab, columns), tp, kv_heads=1)


@settings(max_examples=200)
@given(st.integers(1, 100), st.data())
def test_stages_hold_every_layer_once_and_differ_by_at_most_one(layers, data):
    pp = data.draw(st.integers(1, layers))
    stages = stage_layers(layers, pp)
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    lengths = [len(stage) for stage in stages]
    assert lengths == [len(part) for part in np.array_split(np.arange(layers), pp)]
