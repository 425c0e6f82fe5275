"""Text and counts that clients see."""

from __future__ import annotations

import codecs
from time import perf_counter

from tests.serving.fakes import FakeReplySink
from toolkit.serving.counters import SpeculationCounters
from toolkit.serving.replies import ReplyBuilder
from toolkit.serving.text_request import TextRequest
from toolkit.speculation.request import Chunk


class FakeByteStream:
    """A token is a byte."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: list[int]) -> str:
        return self._decoder.decode(bytes(ids))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def replies(chunks, **request):
    sink = FakeReplySink()
    wanted = TextRequest(text="ask", max_tokens=99, **request)
    counters = SpeculationCounters(lambda name, labels, amount: None)
    builder = ReplyBuilder(wanted, sink, FakeByteStream(), counters)
    for chunk in chunks:
        builder.take(chunk)
    return sink


def chunk(text: bytes, accepted: int = 0, drafted: int = 0, reason=None) -> Chunk:
    return Chunk(0, list(text), accepted, drafted, reason)


def test_streamed_replies_carry_the_new_text_only():
    sink = replies([chunk(b"ab"), chunk(b"c"), chunk(b"d", reason="length")], stream=True)
    assert [reply.text for reply in sink.replies] == ["ab", "c", "d"]
    assert [reply.final for reply in sink.replies] == [False, False, True]


def test_without_streaming_there_is_one_reply_with_everything():
    sink = replies([chunk(b"ab"), chunk(b"c"), chunk(b"d", reason="length")])
    assert [(reply.text, reply.final) for reply in sink.replies] == [("abcd", True)]


def test_half_a_character_waits_for_the_rest():
    han = "한".encode()  # three bytes
    sink = replies([chunk(han[:2]), chunk(han[2:] + b"!"), chunk(b"", reason="stop")], stream=True)
    assert [reply.text for reply in sink.replies] == ["한!", ""]


def test_half_a_character_at_the_end_is_shown_as_such():
    sink = replies([chunk(b"a" + "한".encode()[:1], reason="length")], stream=True)
    assert [reply.text for reply in sink.replies] == ["a�"]


def test_the_text_ends_before_a_stop_word_that_spans_chunks():
    sink = replies(
        [chunk(b"one EN"), chunk(b"D two", reason="stop")], stream=True, stop_words=("END",)
    )
    assert "".join(reply.text for reply in sink.replies) == "one "


def test_counts_are_of_the_whole_request():
    # 3 of 4, 0 of 4 and 2 of 4 accepted: 5 of 12.
    sink = replies(
        [chunk(b"a"), chunk(b"bcde", 3, 4), chunk(b"f", 0, 4), chunk(b"ghi", 2, 4, "length")],
        return_perf_metrics=True,
    )
    [reply] = sink.replies
    assert (reply.draft_tokens, reply.accepted_tokens, reply.with_counts) == (12, 5, True)
    assert reply.acceptance_rate == 5 / 12


def test_output_tokens_are_counted_for_those_who_ask():
    chunks = [chunk(b"a"), chunk("한".encode()[:2]), chunk("한".encode()[2:], reason="stop")]
    asked = replies(chunks, stream=True, return_num_output_tokens=True)
    assert [reply.output_tokens for reply in asked.replies] == [1, 4]
    assert [reply.output_tokens for reply in replies(chunks).replies] == [None]


def test_a_request_that_drafted_nothing_has_rate_zero():
    [reply] = replies([chunk(b"a", reason="stop")]).replies
    assert reply.acceptance_rate == 0.0


def test_the_input_comes_first_when_it_is_wanted():
    sink = replies([chunk(b"x"), chunk(b"y", reason="stop")], stream=True, exclude_input=False)
    assert [reply.text for reply in sink.replies] == ["askx", "y"]


def test_a_cancelled_request_ends_with_an_error():
    sink = replies([chunk(b"a"), chunk(b"", reason="cancelled")])
    assert (sink.failure, sink.replies) == ("cancelled", [])


def test_a_request_is_timed_when_it_ends_and_not_when_it_is_cancelled():
    seen = []
    counters = SpeculationCounters(
        lambda name, labels, amount: seen.append(name),
        lambda name, labels, value: seen.append((name, value)),
    )

    def run(*chunks):
        seen.clear()
        wanted = TextRequest(text="ask", max_tokens=99)
        builder = ReplyBuilder(
            wanted, FakeReplySink(), FakeByteStream(), counters, arrived=perf_counter() - 1.0
        )
        for one in chunks:
            builder.take(one)
        return dict(entry for entry in seen if isinstance(entry, tuple))

    found = run(chunk(b"a"), chunk(b"bcd", accepted=2, drafted=4), chunk(b"e", 0, 4, "length"))
    assert found["spec_decode_acceptance_length"] == 2.0  # 2 accepted in 2 steps
    assert 1.0 <= found["time_to_first_token_seconds"] <= found["e2e_request_latency_seconds"]
    assert run(chunk(b"a"), chunk(b"", reason="cancelled")) == {}
