import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import InputError
from toolkit.speculation.corpus import END, Corpus, load_corpus, suffix_order

texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=8)


class FakeEncoder:
    """A token is a letter."""

    vocab_size = 26

    def encode(self, text, add_special=True):
        assert not add_special
        return [ord(letter) - ord("a") for letter in text]


def naive_match(corpus, tokens, max_size):
    for size in range(min(max_size, len(tokens)), 0, -1):
        pattern = tokens[len(tokens) - size :]
        if any(t[i : i + size] == pattern for t in corpus for i in range(len(t))):
            return size
    return 0


def naive_draft(corpus, suffix, count):
    draft = []
    while len(draft) < count:
        path, counts, latest, place = [*suffix, *draft], Counter(), {}, 0
        for text in corpus:
            ended = [*text, END]
            for i in range(len(text)):
                if ended[i : i + len(path)] == path:
                    counts[ended[i + len(path)]] += 1
                    latest[ended[i + len(path)]] = place + i
            place += len(ended)
        token = max(counts, key=lambda t: (counts[t], latest[t]), default=END)
        if token == END:
            break
        draft.append(token)
    return draft


@given(texts)
def test_suffixes_are_sorted_as_their_tokens_are(corpus):
    joined = [token for text in corpus for token in (*text, END)]
    order = suffix_order(np.array(joined, dtype=np.int32)).tolist()
    assert order == sorted(range(len(joined)), key=lambda start: joined[start:])


@given(texts, st.lists(st.integers(0, 3), max_size=10), st.integers(1, 5), st.integers(1, 8))
def test_match_and_draft_equal_the_definition(past, tokens, max_size, count):
    corpus = Corpus(past)
    size = corpus.match(tokens, max_size)
    assert size == naive_match(past, tokens, max_size)
    if size:
        suffix = tokens[-size:]
        assert corpus.draft(suffix, count) == naive_draft(past, suffix, count)


def test_the_most_frequent_continuation_is_drafted_up_to_where_texts_end():
    corpus = Corpus([[1, 2, 3], [1, 2, 4], [1, 2, 3], [9, 9]])
    assert corpus.match([7, 1, 2], 64) == 2
    assert corpus.draft([1, 2], 5) == [3]
    # Once a 9 followed and once, later, the end: what the next text begins with never does.
    assert corpus.draft([9], 5) == corpus.draft([3], 5) == []


def write(tmp_path, *lines):
    path = tmp_path / "past.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def test_texts_tokens_and_logged_pairs_are_read(tmp_path):
    path = write(
        tmp_path,
        {"text": "abc"},
        "",
        {"tokens": [3, 4, 5]},
        {"prompt": "xx", "output": "ghi", "domain": "code", "raw": True, "id": "1"},
    )
    corpus = load_corpus(path, FakeEncoder())
    assert [corpus.draft(suffix, 4) for suffix in ([0], [3], [6])] == [[1, 2], [4, 5], [7, 8]]
    assert corpus.match([23], 4) == 0  # prompts are not what a model says


def test_a_file_is_read_once_until_it_changes(tmp_path):
    encoder, path = FakeEncoder(), write(tmp_path, {"text": "abc"})
    corpus = load_corpus(path, encoder)
    assert load_corpus(path, encoder) is corpus
    write(tmp_path, {"text": "abcd"})
    assert load_corpus(path, encoder).draft([0], 9) == [1, 2, 3]


def test_all_problems_come_at_once_with_their_lines(tmp_path):
    path = write(
        tmp_path,
        {"text": "abc", "tokens": [1]},
        {"tokens": [1, 26]},
        {"tokens": [True]},
        {"text": ""},
        {"text": 3},
        {"txt": "abc"},
        {"prompt": "a"},
        "[]",
        "{",
    )
    with pytest.raises(InputError) as caught:
        load_corpus(path, FakeEncoder())
    said = str(caught.value)
    for part in (
        "9 problem(s)",
        f"{path}:1: expected one of text, tokens, output; found text and tokens",
        f"{path}:2: tokens: 26 is no token of the target (0..25)",
        f"{path}:3: tokens: True is no token",
        f"{path}:4: text: empty",
        f"{path}:5: text: expected str, got int",
        f"{path}:6: unknown key 'txt'; did you mean 'text'?",
        f"{path}:7: expected one of text, tokens, output; found none",
        f'{path}:8: expected an object like {{"text": "..."}}',
        f"{path}:9: not JSON",
    ):
        assert part in said


def test_only_the_first_of_very_many_problems_are_listed(tmp_path):
    with pytest.raises(InputError, match="21 problem") as caught:
        load_corpus(write(tmp_path, *["{"] * 1000), FakeEncoder())
    assert len(str(caught.value).splitlines()) == 22


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_a_file_without_text_is_refused(tmp_path, content):
    path = tmp_path / "past.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"past\.jsonl"):
        load_corpus(path, FakeEncoder())


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_corpus(tmp_path / "none.jsonl", FakeEncoder())
