import pytest

from tests.speculation.tiny_tokens import END, guidance
from toolkit.serving.matchers import MatcherPool
from toolkit.speculation.grammar import GrammarError, Guide

GUIDANCE = guidance()
GRAMMAR = GUIDANCE.compile(Guide("regex", "(ab|b)*a"))


def masks(text):
    return text.matcher.mask().tolist()


def fresh(tokens):
    matcher = GRAMMAR.matcher()
    matcher.advance(tokens)
    return matcher.mask().tolist()


@pytest.mark.parametrize(
    "calls",
    [
        [[], [0], [0, 1], [0, 1, 1]],  # as a text grows
        [[0, 1, 1, 0], [0, 1], [0, 1, 0, 1], []],  # refused tokens are taken back
        [[1, 0, END], [1, 2], [1, 0, END]],
    ],
)
def test_a_matcher_moves_to_wherever_its_request_stands(calls):
    pool = MatcherPool()
    for tokens in calls:
        text = pool.acquire(GRAMMAR, tokens, "request")
        assert masks(text) == fresh(tokens)
        assert text.tokens == tokens


def test_requests_have_their_own_and_calls_without_an_id_a_new_one():
    pool = MatcherPool()
    one, two = pool.acquire(GRAMMAR, [1], "one"), pool.acquire(GRAMMAR, [1], "two")
    assert one is not two
    assert pool.acquire(GRAMMAR, [1, 1], "one") is one
    assert pool.acquire(GRAMMAR, [1]) is not pool.acquire(GRAMMAR, [1])
    pool.release("one")
    pool.release("one")
    assert pool.acquire(GRAMMAR, [1], "one") is not one
    other = GUIDANCE.compile(Guide("regex", "b+"))
    assert pool.acquire(other, [1], "two") is not two


def test_a_text_that_the_grammar_forbids_is_refused():
    pool = MatcherPool()
    with pytest.raises(GrammarError, match="token 0 is not allowed here"):
        pool.acquire(GRAMMAR, [0, 0], "request")
    assert masks(pool.acquire(GRAMMAR, [0], "request")) == fresh([0])
