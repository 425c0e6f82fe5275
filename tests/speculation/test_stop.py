import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.speculation.stop import HeldText, StopCondition

LETTERS = "abc"


def decode(tokens):
    """Token 0 is `a`, 1 `b`, 2 `c`, and 3 to 11 are pairs of them."""
    pieces = [*LETTERS, *(x + y for x in LETTERS for y in LETTERS)]
    return "".join(pieces[token] for token in tokens)


def utf8(tokens):
    """One token a byte."""
    return bytes(tokens).decode(errors="replace")


def test_tokens_end_with_the_stop_token():
    condition = StopCondition(frozenset({7, 9}))
    assert condition.cut([1, 2]) == ([1, 2], False)
    assert condition.cut([3, 9, 7, 4]) == ([3, 9], True)


def test_nothing_stops_without_stops():
    assert StopCondition(frozenset()).cut([1, 2, 3]) == ([1, 2, 3], False)


def test_a_stop_string_may_span_tokens_and_steps():
    condition = StopCondition(frozenset(), ["cab"], decode)
    assert condition.cut([0, 2]) == ([0, 2], False)  # ac
    assert condition.cut([0, 1, 2]) == ([0, 1], True)  # ac|ab: the b completes it


def test_a_token_longer_than_the_rest_of_the_stop_string_is_kept_whole():
    # ab + ca: the stop string bc ends inside the second token.
    assert StopCondition(frozenset(), ["bc"], decode).cut([4, 9, 0]) == ([4, 9], True)


def test_whichever_stop_comes_first_wins():
    condition = StopCondition(frozenset({2}), ["bb"], decode)
    assert condition.cut([1, 1, 2]) == ([1, 1], True)
    condition = StopCondition(frozenset({2}), ["bb"], decode)
    assert condition.cut([1, 2, 1, 1]) == ([1, 2], True)


def test_a_stop_string_may_be_of_characters_that_tokens_cut_in_two():
    tokens = list("감사합니다".encode())
    assert StopCondition(frozenset(), ["합니"], utf8).cut(tokens) == (tokens[:12], True)


def test_stop_strings_without_a_decoder_are_refused():
    with pytest.raises(ValueError, match="decode"):
        StopCondition(frozenset(), ["x"])


@given(
    st.lists(st.lists(st.integers(0, 11), max_size=5), max_size=60),
    st.lists(st.text(LETTERS, min_size=3, max_size=9), min_size=1, max_size=3),
)
def test_a_request_stops_with_the_first_token_that_completes_a_stop_string(chunks, strings):
    flat = [token for chunk in chunks for token in chunk]
    expected = next(
        (n for n in range(len(flat) + 1) if any(s in decode(flat[:n]) for s in strings)), len(flat)
    )
    condition, kept = StopCondition(frozenset(), strings, decode), []
    for chunk in chunks:
        tokens, stopped = condition.cut(chunk)
        kept += tokens
        if stopped:
            break
    assert kept == flat[:expected]


def test_the_window_does_not_grow_with_the_text():
    longest = 0

    def counting(tokens):
        nonlocal longest
        longest = max(longest, len(tokens))
        return decode(tokens)

    condition = StopCondition(frozenset(), ["cccc"], counting)
    for _ in range(1000):
        condition.cut([0, 1])
    assert longest < 50


@given(
    st.lists(st.text(LETTERS, max_size=4), max_size=30),
    st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=3),
)
def test_held_text_shows_everything_before_the_first_stop_string(pieces, strings):
    whole = "".join(pieces)
    held, shown = HeldText(strings), ""
    for piece in pieces:
        shown += held.push(piece)
        assert not any(s in shown for s in strings)
    # The stop string that is completed first ends the text, however it was cut into pieces.
    ends = [n for n in range(len(whole) + 1) if any(whole[:n].endswith(s) for s in strings)]
    assert held.stopped == bool(ends)
    if ends:
        until = whole[: ends[0]]
        assert shown == until[: -max(len(s) for s in strings if until.endswith(s))]
    else:
        assert shown + held.finish() == whole


def test_the_stop_string_completed_first_wins_in_one_piece_and_in_many():
    for pieces in (["abc"], ["a", "bc"], ["ab", "c"]):
        held = HeldText(["abc", "b"])
        assert "".join(map(held.push, pieces)) == "a"


def test_text_waits_only_while_it_could_become_a_stop_string():
    held = HeldText(["###"])
    assert held.push("a#") == "a"
    assert held.push("#") == ""
    assert held.push("b") == "##b"
    assert held.push("#") == ""
    assert held.finish() == "#"


def test_nothing_is_shown_after_the_stop():
    held = HeldText(["end"])
    assert held.push("the end of it") == "the "
    assert held.push("more") == ""
    assert held.finish() == ""
