"""Trees: what makes one, what an engine can hold, and that a name alone is never enough."""

import json
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toolkit.speculation.trees import (
    NAMED,
    Tree,
    canonical_hash,
    fit_problems,
    named,
    non_leaves,
    shape_problems,
)

MEDUSA, EAGLE = NAMED["medusa/mc_sim_7b_63"], NAMED["eagle/mc_sim_7b_63"]


def problems(*choices, **engine):
    return list(fit_problems(choices, **engine) if engine else shape_problems(choices))


def test_one_name_means_two_trees_of_known_sizes():
    # Medusa: 63 paths, deepest 4, widest index 9. EAGLE: 25 paths, deepest 5.
    assert (len(MEDUSA), max(map(len, MEDUSA)), max(max(path) for path in MEDUSA)) == (63, 4, 9)
    assert (len(EAGLE), max(map(len, EAGLE))) == (25, 5)
    assert canonical_hash(MEDUSA) != canonical_hash(EAGLE)


def test_the_bare_name_is_refused_with_both_meanings():
    with pytest.raises(ValueError, match=r"medusa/mc_sim_7b_63 \(63 paths\), eagle/.* \(25 paths"):
        named("mc_sim_7b_63")


@pytest.mark.parametrize("choices", NAMED.values(), ids=NAMED)
def test_known_trees_are_trees(choices):
    assert problems(*choices) == []


def test_the_medusa_tree_fits_the_eagle_engine_that_upstream_tests():
    # convert --max_draft_len=63 --num_eagle_layers=4 --max_non_leaves_per_layer=10
    # All ten nodes of depth 1 have children: exactly the limit.
    assert non_leaves(MEDUSA)[1] == 10
    limits = {"max_draft_len": 63, "depth": 4, "exact_depth": True, "max_non_leaves_per_layer": 10}
    assert problems(*MEDUSA, **limits) == []
    limits["max_non_leaves_per_layer"] = 9
    assert "10 nodes of depth 1 have children" in problems(*MEDUSA, **limits)[0]


def test_a_missing_parent_is_named():
    assert problems((0,), (1, 0)) == ["paths whose parent is missing: [1, 0]"]


def test_a_gap_in_depth_is_also_a_missing_parent():
    found = problems((0,), (0, 0, 0))
    assert "parent is missing: [0, 0, 0]" in found[0]
    assert "no path of depth 2" in found[1]


def test_a_path_given_twice_is_named():
    assert problems((0,), (1,), (0,)) == ["paths given twice: [0]"]


def test_the_root_is_not_a_choice():
    assert "empty path" in problems((), (0,))[0]


def test_child_indices_stop_at_fifteen_and_depth_at_sixteen():
    assert problems((15,)) == []
    assert "outside 0..15: [16]" in problems((16,))[0]
    assert "outside 0..15: [-1]" in problems((-1,))[0]
    chain = [(0,) * depth for depth in range(1, 18)]
    assert problems(*chain[:16]) == []
    assert problems(*chain) == ["depth 17, at most 16 is possible"]


def test_more_nodes_than_max_draft_len_are_refused():
    assert "2 nodes, max_draft_len is 1" in problems((0,), (1,), max_draft_len=1, depth=4)[0]


def test_eagle_wants_exactly_its_depth_and_medusa_at_most():
    shallow = [(0,), (0, 0)]
    assert problems(*shallow, max_draft_len=9, depth=3) == []
    assert problems(*shallow, max_draft_len=9, depth=3, exact_depth=True) == [
        "depth 2, this drafter has exactly 3"
    ]


def test_the_hash_is_of_the_sorted_paths():
    text = json.dumps([[0], [1], [0, 0]], separators=(",", ":"))
    assert canonical_hash([(1,), (0, 0), (0,)]) == sha256(text.encode()).hexdigest()


@given(st.permutations(list(EAGLE)))
def test_the_order_of_writing_changes_nothing(choices):
    assert canonical_hash(choices) == canonical_hash(EAGLE)


@given(st.sets(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=1))
def test_paths_with_all_their_prefixes_are_a_tree(paths):
    closed = {path[:length] for path in paths for length in range(1, len(path) + 1)}
    assert problems(*closed) == []


def test_a_tree_of_a_recipe_carries_its_choices_and_hash():
    tree = Tree.model_validate("medusa/mc_sim_7b_63")
    written = tree.model_dump(mode="json")
    assert written["choices"][:2] == [[0], [0, 0]]
    assert written["sha256"] == canonical_hash(MEDUSA)
    assert Tree.model_validate(written) == tree


def test_a_list_of_paths_is_a_tree_without_a_name():
    assert Tree.model_validate([[0], [0, 1], [0, 0]]).name is None


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ({"choices": [[0]], "sha256": "0" * 64}, "the tree was edited"),
        ({"name": "medusa/mc_sim_7b_63", "choices": [[0]]}, "not the choices of"),
        ("medusa/mc_sim_7b_36", "did you mean 'medusa/mc_sim_7b_63'"),
        ([], "at least 1"),
        ([["0"]], "integer"),
        (7, "dict"),
    ],
    ids=str,
)
def test_what_is_no_tree_is_refused(written, complaint):
    with pytest.raises(ValidationError, match=complaint):
        Tree.model_validate(written, strict=True)
