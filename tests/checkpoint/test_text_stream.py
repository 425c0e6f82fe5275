"""Streamed text: the same characters as decoding at once, none of them by halves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from toolkit.checkpoint.text_stream import TextStream

TEXT = "안녕하세요 world 🙂 naïve\n한국어 42"


def byte_level():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*alphabet, "Ġw", "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("Ġ", "w")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def byte_fallback():
    """As SentencePiece models do: words begin with a mark, unknown characters become bytes."""
    tokens = ["<end>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "한"]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [("▁", "a")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)])
    tokenizer.add_tokens([AddedToken("<end>", special=True)])
    return tokenizer


BYTE_LEVEL, BYTE_FALLBACK = byte_level(), byte_fallback()


def pieces(tokenizer, ids, cuts, *, bytewise):
    def decode(tokens):
        return tokenizer.decode(tokens, skip_special_tokens=True)

    stream = TextStream(decode, bytewise=bytewise)
    found, start = [], 0
    for cut in [*sorted(cuts), len(ids)]:
        found.append(stream.push(ids[start:cut]))
        start = max(start, cut)
    return [*found, stream.finish()], decode(ids)


@settings(max_examples=300)
@given(st.data())
def test_any_bytes_stream_to_what_decoding_them_at_once_gives(data):
    ids = data.draw(st.lists(st.integers(0, 257), max_size=40))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=10))
    found, whole = pieces(BYTE_LEVEL, ids, cuts, bytewise=True)
    assert "".join(found) == whole


@given(st.text(max_size=30), st.data())
def test_valid_text_never_shows_half_a_character(text, data):
    ids = BYTE_LEVEL.encode(text).ids
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=20))
    found, whole = pieces(BYTE_LEVEL, ids, cuts, bytewise=True)
    assert "".join(found) == whole
    if "\N{REPLACEMENT CHARACTER}" not in whole:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in found)


@given(st.text(alphabet="ab 한é🙂", max_size=20), st.data())
def test_byte_fallback_streams_too(text, data):
    ids = BYTE_FALLBACK.encode(text).ids
    for _ in range(data.draw(st.integers(0, 3))):
        ids.insert(data.draw(st.integers(0, len(ids))), 0)  # special tokens leave no trace
    # a special token inside a character's bytes would rightly break it
    whole = BYTE_FALLBACK.decode(ids, skip_special_tokens=True)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=20))
    found, _ = pieces(BYTE_FALLBACK, ids, cuts, bytewise=False)
    assert "".join(found) == whole


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK])
def test_one_token_at_a_time(tokenizer):
    ids = tokenizer.encode(TEXT).ids
    found, whole = pieces(tokenizer, ids, range(len(ids)), bytewise=tokenizer is BYTE_LEVEL)
    assert "".join(found) == whole
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in found)


def test_text_comes_as_soon_as_it_is_final():
    # "a", then the three bytes of one Korean character
    stream = TextStream(BYTE_LEVEL.decode, bytewise=True)
    first, *rest = BYTE_LEVEL.encode("a한").ids
    assert stream.push([first]) == "a"
    assert [stream.push([token]) for token in rest] == ["", "", "한"]
    assert stream.finish() == ""


def test_an_unfinished_character_ends_as_a_mark():
    stream = TextStream(BYTE_LEVEL.decode, bytewise=True)
    assert stream.push(BYTE_LEVEL.encode("한").ids[:2]) == ""
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"
