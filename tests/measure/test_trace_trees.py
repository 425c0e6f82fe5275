"""Searched trees against every tree there is, and against the steps that a loop takes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.measure.trace_rounds import add, expected_rounds
from toolkit.measure.trace_trees import TreeSearch, elsewhere
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.trace import UNRANKED
from toolkit.speculation.tree_trace import tree_trace
from toolkit.speculation.trees import shape_problems

NODES, DEPTH, WIDTH = 4, 3, 2
PATHS = [p for d in range(1, DEPTH + 1) for p in itertools.product(range(WIDTH), repeat=d)]


def all_trees():
    """Every tree of one to four nodes, three levels deep and two children wide."""
    found, level = set(), {frozenset()}
    for _ in range(NODES):
        level = {
            tree | {path}
            for tree in level
            for path in PATHS
            if path not in tree and (len(path) == 1 or path[:-1] in tree)
        }
        found |= level
    return [tuple(tree) for tree in found]


TREES = all_trees()


def within_the_text(rows):
    """The draft of depth d from start i is of output token i + 1 + d, which may be beyond it."""
    found = np.array(rows)
    start, depth = np.indices(found.shape)
    found[start + depth >= len(rows)] = UNRANKED
    return found


ranks = st.lists(
    st.lists(st.sampled_from([0, 0, 1, UNRANKED]), min_size=DEPTH, max_size=DEPTH),
    min_size=1,
    max_size=12,
).map(within_the_text)


def test_there_are_as_many_small_trees_as_counted_by_hand():
    # With the text as their root these are binary trees of two to five nodes: Catalan numbers. Of
    # the last, 2^4 are chains too deep.
    assert len(TREES) == 2 + 5 + 14 + 42 - 16


@settings(max_examples=60, deadline=None)
@given(st.lists(ranks, min_size=1, max_size=3), st.integers(1, NODES), st.data())
def test_no_tree_of_n_nodes_brings_more_from_the_same_places(texts, nodes, data):
    places = [
        np.array(data.draw(st.lists(st.booleans(), min_size=len(t), max_size=len(t))))
        for t in texts
    ]

    def brings(tree):
        accepts = [tree_trace(text, tree, DEPTH).accept for text in texts]
        return sum(a.sum(axis=1)[starts].sum() for a, starts in zip(accepts, places, strict=True))

    found = TreeSearch(texts).seen_from(places, nodes)
    assert len(found) <= nodes
    assert list(shape_problems(found)) == []
    most = max(brings(tree) for tree in TREES if len(tree) <= nodes)
    assert (brings(found) if found else 0) == most


@settings(max_examples=60, deadline=None)
@given(st.lists(ranks, min_size=1, max_size=3), st.integers(1, NODES))
def test_the_search_takes_no_more_steps_than_counting_every_place_alike(texts, nodes):
    search = TreeSearch(texts)
    alike = search.seen_from([np.ones(len(text), np.bool_) for text in texts], nodes)
    assert search.decoded(search.best(nodes)).verify_steps <= search.decoded(alike).verify_steps


@settings(max_examples=60, deadline=None)
@given(st.lists(ranks, min_size=1, max_size=3), st.sampled_from(TREES), st.integers(1, 12))
def test_decoding_is_counted_as_the_expectations_count_it(texts, tree, wanted):
    found = TreeSearch(texts, wanted).decoded(tree)
    traces = [tree_trace(text, tree, DEPTH) for text in texts]
    rounds = add([expected_rounds(each, Fixed(DEPTH), wanted=wanted) for each in traces])
    assert found.verify_steps == rounds.verify_steps
    assert found.accepted == rounds.accepted
    assert found.acceptance_length == pytest.approx(rounds.acceptance_length)


def test_steps_are_counted_as_by_hand():
    # With (0,) steps start at 0, 2, 4, 6 and 7, and only the draft of 6 fails. With (1,) they start
    # at 0, 1, 3, 5 and 7, and the first and the last fail.
    one = np.array([[0], [1], [0], [1], [0], [1], [UNRANKED], [0]])
    search = TreeSearch([one])
    assert search.best(1) == ((0,),)
    assert (search.decoded([(0,)]).verify_steps, search.decoded([(0,)]).accepted) == (5, 4)
    assert (search.decoded([(1,)]).verify_steps, search.decoded([(1,)]).accepted) == (5, 3)
    assert search.best(2) == ((0,), (1,))


def test_what_is_expected_of_other_texts_was_not_chosen_on_them():
    # Each text is served by another token alone, so what one chooses brings the other nothing.
    texts = [np.zeros((6, 1), np.int64), np.ones((6, 1), np.int64)]
    assert TreeSearch(texts).decoded(TreeSearch(texts).best(2)).acceptance_length == 2
    assert elsewhere(texts, 1).acceptance_length == 1
    assert elsewhere(texts, 1).verify_steps == 12


def test_a_tree_follows_the_places_where_its_steps_start():
    # Seen from everywhere (1,) is right twice and (0,), (0, 0) and (1, 0) once each: (0,) joins it,
    # and steps start at 0, 2 and 3. From these (0,) is never right, and (1, 0) leads from 0 to 3.
    one = np.array([[1, 0], [0, 0], [UNRANKED, UNRANKED], [1, UNRANKED]])
    search = TreeSearch([one])
    alike = search.seen_from([np.ones(4, np.bool_)], 2)
    assert (alike, search.decoded(alike).verify_steps) == (((0,), (1,)), 3)
    assert (search.best(2), search.decoded(search.best(2)).verify_steps) == (((1,), (1, 0)), 2)
