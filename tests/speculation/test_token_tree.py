import numpy as np
import pytest

from toolkit.speculation.interfaces import Proposal
from toolkit.speculation.token_tree import ancestors, check_parents, children, depths, parents_of

#     text
#    0    1
#   2 3   4
#   5
PARENTS = (-1, -1, 0, 0, 1, 2)


def test_depths_ancestors_and_children_by_hand():
    assert depths(PARENTS) == [1, 1, 2, 2, 2, 3]
    assert children(PARENTS, -1) == [0, 1]
    assert children(PARENTS, 0) == [2, 3]
    assert [np.flatnonzero(row).tolist() for row in ancestors(PARENTS)] == [
        [0], [1], [0, 2], [0, 3], [1, 4], [0, 2, 5],
    ]  # fmt: skip


def test_choices_become_parents_level_by_level():
    parents, places = parents_of([(0, 1), (1,), (0,), (0, 0), (0, 0, 0), (1, 0)])
    assert parents == (-1, -1, 0, 0, 1, 2)
    assert places == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 0), (3, 0)]


def test_the_first_nodes_of_a_tree_are_a_tree():
    whole = Proposal([10, 11, 12, 13, 14, 15], None, PARENTS)
    assert whole.depth == 3
    cut = whole.first(3)
    assert (cut.tokens, cut.parents, cut.depth) == ([10, 11, 12], (-1, -1, 0), 2)
    assert whole.first(0).depth == 0
    assert whole.first(9) is whole


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-1, -2), (-1,)])
def test_what_is_no_tree_is_refused(parents):
    with pytest.raises(RuntimeError, match="tree"):
        check_parents(parents, 2 if len(parents) == 1 and parents[0] == -1 else len(parents))
