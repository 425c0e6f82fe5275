import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toolkit.speculation.drafters.ngram import NGramDrafter, NGramIndex, NGramSpeculation
from toolkit.speculation.interfaces import DraftRequest, SamplingParams

GREEDY = SamplingParams()


def lookup(tokens, draft_len, min_size=1, max_size=4):
    drafter = NGramDrafter(min_size, max_size)
    drafter.begin(0, tokens[:-1])
    [proposal] = drafter.propose([DraftRequest(0, tokens, draft_len, GREEDY)])
    assert proposal.probs is None
    return proposal.tokens


def naive(tokens, draft_len, min_size, max_size):
    """The definition: longest suffix first, then its latest earlier copy; read on from there."""
    for size in range(max_size, min_size - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[len(tokens) - size :]:
                text = list(tokens)
                for source in range(start + size, start + size + draft_len):
                    text.append(text[source])
                return text[len(tokens) :]
    return []


def test_what_followed_the_earlier_copy_is_drafted():
    assert lookup([7, 8, 9, 1, 7, 8], 3) == [9, 1, 7]


def test_the_longest_match_wins_over_a_later_shorter_one():
    # 1 2 was followed by 3; the later copy of 2 alone by 9.
    assert lookup([1, 2, 3, 5, 2, 9, 1, 2], 1) == [3]


def test_the_latest_of_equal_matches_wins():
    assert lookup([1, 2, 1, 3, 1], 1) == [3]


def test_a_copy_that_reaches_the_end_reads_its_own_draft():
    assert lookup([5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]
    assert lookup([1, 4, 4], 3) == [4, 4, 4]


def test_nothing_is_drafted_without_a_copy():
    assert lookup([1, 2, 3], 4) == []
    assert lookup([1], 4) == []


def test_matches_below_the_minimum_do_not_count():
    assert lookup([1, 2, 1], 2, min_size=2) == []
    assert lookup([1, 2, 3, 1, 2], 2, min_size=2) == [3, 1]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12),
    st.integers(1, 7),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_the_index_equals_the_definition_while_the_text_grows(pieces, draft_len, low, more):
    drafter, tokens = NGramDrafter(low, low + more), []
    drafter.begin(0, pieces[0])
    for piece in pieces:
        tokens += piece
        [proposal] = drafter.propose([DraftRequest(0, tokens, draft_len, GREEDY)])
        assert proposal.tokens == naive(tokens, draft_len, low, low + more)


def test_a_step_reads_only_what_is_new():
    class FakeCountingList(list):
        reads = 0

        def __getitem__(self, at):
            FakeCountingList.reads += 1
            return super().__getitem__(at)

    tokens, index = FakeCountingList(range(5000)), NGramIndex(1, 4)
    index.extend(tokens)
    FakeCountingList.reads = 0
    tokens.append(3)
    index.extend(tokens)
    index.follower(tokens)
    assert FakeCountingList.reads <= 8


def test_sequences_do_not_see_each_other_and_are_forgotten():
    drafter = NGramDrafter()
    drafter.begin(0, [1, 2])
    drafter.begin(1, [3, 3])
    first, second = drafter.propose(
        [
            DraftRequest(0, [1, 2, 3], 2, GREEDY),
            DraftRequest(1, [3, 3, 1], 2, GREEDY),
        ]
    )
    assert first.tokens == second.tokens == []
    drafter.end(0)
    drafter.end(0)
    assert list(drafter._indices) == [1]


def test_the_sizes_must_be_in_order():
    with pytest.raises(ValidationError, match="min_matching_ngram_size 5 is above"):
        NGramSpeculation(min_matching_ngram_size=5)
