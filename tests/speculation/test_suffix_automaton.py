from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.speculation.suffix_automaton import SuffixAutomaton


def automaton(tokens, max_size=64):
    made = SuffixAutomaton(max_size)
    made.extend(tokens)
    return made


def commonest_follower(tokens, context, size):
    """Of the last `size` tokens of `context` in `tokens`: the most frequent, then the latest."""
    pattern = context[len(context) - size :]
    ends = [end for end in range(size, len(tokens)) if tokens[end - size : end] == pattern]
    counts = Counter(tokens[end] for end in ends)
    latest = {tokens[end]: end for end in ends}
    return max(counts, key=lambda token: (counts[token], latest[token]), default=None)


def naive(tokens, count, min_size, max_size):
    """The definition, token by token: the longest suffix of text and draft that has a follower."""
    draft = []
    while len(draft) < count:
        context = tokens + draft
        for size in range(min(max_size, len(context)), min_size - 1, -1):
            token = commonest_follower(tokens, context, size)
            if token is not None:
                draft.append(token)
                break
        else:
            break
    return draft


def longest(tokens, max_size):
    return next(
        (
            size
            for size in range(min(max_size, len(tokens)), 0, -1)
            if commonest_follower(tokens, tokens, size) is not None
        ),
        0,
    )


def test_what_followed_the_longest_copy_is_drafted():
    # 1 2 was followed by 3; 2 alone by 9, later.
    made = automaton([1, 2, 3, 5, 2, 9, 1, 2])
    assert (made.match(), made.draft(2, 1)) == (2, [3, 5])


def test_the_most_frequent_follower_wins_and_the_latest_of_equals():
    assert automaton([1, 2, 1, 2, 1, 3, 4, 1]).draft(1, 1) == [2]
    assert automaton([1, 2, 1, 3, 4, 1]).draft(1, 1) == [3]


def test_a_copy_that_reaches_the_end_reads_its_own_draft():
    assert automaton([5, 6, 5, 6]).draft(5, 1) == [5, 6, 5, 6, 5]
    assert automaton([1, 4, 4]).draft(3, 1) == [4, 4, 4]


def test_nothing_is_drafted_without_a_copy():
    for tokens in ([], [1], [1, 2, 3]):
        assert (automaton(tokens).match(), automaton(tokens).draft(4, 1)) == (0, [])


def test_matches_below_the_minimum_draft_nothing():
    assert automaton([1, 2, 1]).draft(2, 2) == []
    assert automaton([1, 2, 3, 1, 2]).draft(1, 2) == [3]
    # 3 was drafted behind 1 2; behind it only the match of 3 1 goes on, and so forth.
    assert automaton([1, 2, 3, 1, 2]).draft(4, 2) == [3, 1, 2, 3]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12),
    st.integers(1, 7),
    st.integers(1, 3),
    st.integers(0, 4),
)
def test_it_equals_the_definition_while_the_text_grows(pieces, count, low, more):
    made, tokens = SuffixAutomaton(low + more), []
    for piece in pieces:
        tokens += piece
        made.extend(tokens)
        assert made.match() == longest(tokens, low + more)
        assert made.draft(count, low) == naive(tokens, count, low, low + more)


@pytest.mark.parametrize("period", [1, 2, 7, 5000])
def test_a_token_costs_the_same_however_long_the_text_is(period):
    class FakeCountingList(list):
        reads = 0

        def __getitem__(self, at):
            FakeCountingList.reads += 1
            return super().__getitem__(at)

    made = automaton([i % period for i in range(5000)], 16)
    made._link = FakeCountingList(made._link)
    for i in range(5000, 5100):
        made.extend([*range(i), i % period])
        made.draft(4, 1)
    # By token: 17 counts, 16 followers, and amortised a few for the automaton and the draft.
    assert FakeCountingList.reads < 100 * 60
