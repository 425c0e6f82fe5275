"""Calls in TensorRT-LLM's manner against one model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.fakes import FakeSink, draft_engine, finish, target_engine
from tests.speculation.table_model import FakeTableModel, random_table
from tests.speculation.tiny_tokens import guidance
from toolkit.errors import CapacityError
from toolkit.serving.calls import Call
from toolkit.serving.llm import CallEngine
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.grammar import Guide
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import SpeculativeLoop
from toolkit.speculation.request import GREEDY, Request
from toolkit.speculation.sampling import Role

VOCAB = 12
TABLE = random_table(3, VOCAB, order=2)


def model(**limits: int) -> FakeTableModel:
    return FakeTableModel(TABLE, **limits)


def call(*tokens: int, length: int = 8, sampling: SamplingParams = GREEDY, **more: object) -> Call:
    return Call(input_ids=tokens, request_output_len=length, sampling=sampling, **more)


def plain(prompt: tuple[int, ...], length: int, sampling: SamplingParams = GREEDY) -> list[int]:
    """What the loop says, decoding plainly."""
    loop = SpeculativeLoop(model(), None, Fixed(0))
    return loop.generate([Request(prompt, length, sampling)])[0].tokens


SAMPLED = SamplingParams(temperature=1.0, seed=7)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, SamplingParams(0.7, 4, 0.9, 5)])
def test_a_call_without_a_draft_generates_what_the_loop_generates(sampling):
    sink = finish(target_engine(model()), call(1, 2, 3, length=20, sampling=sampling))
    assert sink.tokens == plain((1, 2, 3), 20, sampling)
    assert len(sink.emissions) == 1


def test_a_right_draft_is_accepted_and_followed_by_one_token():
    truth = plain((1, 2, 3), 5)
    sink = finish(target_engine(model()), call(1, 2, 3, length=5, draft_input_ids=tuple(truth[:4])))
    assert sink.tokens == truth
    assert (sink.emissions[0].accepted, sink.emissions[0].drafted) == (4, 4)


def test_a_wrong_draft_token_is_replaced_and_ends_the_step():
    truth = plain((1, 2, 3), 3)
    wrong = (truth[0], (truth[1] + 1) % VOCAB, truth[2])
    sink = finish(target_engine(model()), call(1, 2, 3, length=4, draft_input_ids=wrong))
    assert sink.tokens == truth[:2]
    assert sink.emissions[0].accepted == 1


def test_after_a_refused_draft_the_next_call_continues_from_what_stood():
    served = model()
    engine = target_engine(served)
    truth = plain((1, 2, 3), 6)
    wrong = (truth[0], (truth[1] + 1) % VOCAB)
    first = finish(engine, call(1, 2, 3, draft_input_ids=wrong, request_id="a"))
    second = finish(engine, call(1, 2, 3, *first.tokens, length=4, request_id="a"))
    assert first.tokens + second.tokens == truth
    # prompt + draft; then the recovered token, and one for each but the last of the new ones
    assert [fed for [fed] in served.forwards] == [5, 1, 1, 1, 1]


@given(seed=st.integers(0, 2**63 - 1), drafted=st.lists(st.integers(0, VOCAB - 1), max_size=4))
@settings(max_examples=50, deadline=None)
def test_token_match_emits_only_what_the_target_could_draw(seed, drafted):
    sampling = SamplingParams(temperature=1.0, top_k=3, seed=seed)
    sink = finish(
        target_engine(model()), call(1, 2, sampling=sampling, draft_input_ids=tuple(drafted))
    )
    text = [1, 2]
    for token in sink.tokens:
        assert token in np.argsort(TABLE[tuple(text[-2:])])[-3:]
        text.append(token)


def test_generation_logits_are_the_rows_that_the_tokens_came_from():
    sink = finish(target_engine(model()), call(1, 2, length=3, return_logits=True))
    text = [1, 2, *sink.tokens]
    wanted = np.stack([TABLE[text[i], text[i + 1]] for i in range(3)]).astype(np.float32)
    np.testing.assert_array_equal(sink.emissions[0].logits, wanted)


def test_the_end_token_ends_the_call_and_is_among_its_tokens():
    truth = plain((1, 2, 3), 10)
    end = truth[4]
    sink = finish(target_engine(model()), call(1, 2, 3, length=10, end_ids=frozenset({end})))
    assert sink.tokens == truth[: truth.index(end) + 1]


def test_min_tokens_keeps_the_end_token_away():
    end = plain((1, 2, 3), 1)[0]
    sink = finish(
        target_engine(model()),
        call(1, 2, 3, length=6, end_ids=frozenset({end}), min_tokens=3),
    )
    assert end not in sink.tokens[:3]


# A table over seven tokens: a, b, ab, two ends, a special token and one that only pads.
GUIDANCE = guidance()
GUIDED = random_table(5, 7, order=2, spread=1.5)


def guided(*tokens: int, begins: int, regex: str = "(ab|b){2,9}a", **more: object) -> Call:
    grammar = GUIDANCE.compile(Guide("regex", regex))
    return call(*tokens, grammar=grammar, guide_begins=begins, **more)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(1.0, seed=3)])
def test_a_call_under_a_grammar_generates_what_the_loop_generates(sampling):
    wanted = guided(0, 1, begins=2, length=30, sampling=sampling)
    loop = SpeculativeLoop(FakeTableModel(GUIDED), None, Fixed(0))
    [output] = loop.generate([Request((0, 1), 30, sampling, grammar=wanted.grammar)])
    engine = target_engine(FakeTableModel(GUIDED))
    assert finish(engine, wanted).tokens == output.tokens
    # Cut into calls of which each brings all of the text, a wrong draft in between.
    text = [0, 1]
    while text[2:] != output.tokens:
        done = len(text) - 2
        if done == 2:
            wrong = (0 if output.tokens[2] != 0 else 1,)
            [token, *_] = finish(
                engine,
                guided(*text, begins=2, sampling=sampling, request_id="x", draft_input_ids=wrong),
            ).tokens
            text.append(token)
            continue
        more = guided(*text, begins=2, length=2, sampling=sampling, request_id="x")
        text += finish(engine, more).tokens
    assert text[2:] == output.tokens


def test_a_grammar_that_is_complete_ends_a_call_that_must_go_on():
    ends = frozenset({3, 4})
    wanted = guided(0, begins=1, regex="b", length=9, min_tokens=9, end_ids=ends)
    letter, end = finish(target_engine(FakeTableModel(GUIDED)), wanted).tokens
    assert letter == 1
    assert end in ends


def test_a_call_that_its_grammar_forbids_or_leaves_stuck_fails_alone():
    engine = target_engine(FakeTableModel(GUIDED))
    sinks = [FakeSink() for _ in range(3)]
    engine.submit(guided(0, 0, 0, begins=1), sinks[0])
    engine.submit(guided(0, begins=1, regex="bc"), sinks[1])
    engine.submit(call(0, length=3), sinks[2])
    while engine.busy:
        engine.step()
    assert "token 0 is not allowed here" in sinks[0].failure
    assert "no token is allowed here" in sinks[1].failure
    assert len(sinks[2].tokens) == 3
    assert engine.pool.active == 0


def test_a_stop_sequence_ends_the_call():
    truth = plain((1, 2, 3), 10)
    stop = tuple(truth[2:4])
    sink = finish(target_engine(model()), call(1, 2, 3, length=10, stop_sequences=(stop,)))
    assert sink.tokens == truth[:4]


def test_a_draft_uses_other_random_numbers_than_the_target():
    sampled = SamplingParams(temperature=5.0, seed=1)
    texts = {
        tuple(finish(engine(model()), call(1, 2, length=12, sampling=sampled)).tokens)
        for engine in (target_engine, draft_engine)
    }
    assert len(texts) == 2


def test_calls_share_steps_and_do_not_disturb_each_other():
    served = model()
    engine = target_engine(served)
    sinks = [FakeSink() for _ in range(3)]
    for number, sink in enumerate(sinks):
        engine.submit(call(number, number + 1, length=6), sink)
    while engine.busy:
        engine.step()
    assert [sink.tokens for sink in sinks] == [plain((i, i + 1), 6) for i in range(3)]
    assert len(served.forwards) == 6


def test_a_long_prompt_is_read_in_pieces():
    served = model(max_seq_len=4096)
    engine = target_engine(served)
    prompt = tuple(i % VOCAB for i in range(1300))
    sink = finish(engine, call(*prompt, length=2))
    assert sink.tokens == plain(prompt, 2)
    assert [fed for [fed] in served.forwards] == [512, 512, 276, 1]


def test_more_calls_than_slots_take_turns():
    engine = target_engine(model(max_batch_size=2))
    sinks = [FakeSink() for _ in range(5)]
    for number, sink in enumerate(sinks):
        engine.submit(call(number, length=3, request_id=f"r{number}"), sink)
    while engine.busy:
        engine.step()
    assert [sink.tokens for sink in sinks] == [plain((i,), 3) for i in range(5)]


def test_a_full_queue_refuses_and_says_so():
    served = model()
    engine = CallEngine(served, Role.EMIT, max_queue_size=1)
    # All of a batch and one more: those that come together wait together, if only for a moment.
    accepted = [FakeSink() for _ in range(served.max_batch_size + 1)]
    for sink in accepted:
        engine.submit(call(1, length=1), sink)
    refused = FakeSink()
    engine.submit(call(2), refused)
    while engine.busy:
        engine.step()
    assert [len(sink.tokens) for sink in accepted] == [1] * len(accepted)
    assert "queue is full" in refused.failure
    assert refused.code == "UNAVAILABLE"


def test_a_client_that_went_away_frees_its_sequence(monkeypatch):
    monkeypatch.setattr("toolkit.serving.llm._CANCEL_CHECK_S", 0.0)
    engine = target_engine(model())
    sink = FakeSink()
    engine.submit(call(1, 2, length=1000, request_id="a"), sink)
    engine.step()
    assert engine.pool.active == 1
    sink.gone = True
    engine.step()
    assert (engine.busy, engine.pool.active, sink.failure) == (False, 0, "cancelled")


def test_stop_ends_the_calls_of_a_request_and_lets_its_sequence_go():
    engine = target_engine(model())
    sink, other = FakeSink(), FakeSink()
    engine.submit(call(1, 2, length=1000, request_id="a"), sink)
    engine.submit(call(3, 4, length=5, request_id="b"), other)
    engine.step()
    engine.stop("a")
    while engine.busy:
        engine.step()
    assert sink.failure == "cancelled"
    assert other.tokens == plain((3, 4), 5)
    engine.stop("b")
    assert engine.pool.active == 0


def test_a_failing_model_fails_the_calls_and_the_next_ones_work():
    served = model()
    engine = target_engine(served)
    sink = FakeSink()
    engine.submit(call(1, 2), sink)
    forward = served.forward

    def broken(steps):
        raise RuntimeError("boom")

    served.forward = broken
    engine.step()
    served.forward = forward
    assert sink.failure == "RuntimeError: boom"
    assert not engine.busy
    assert finish(engine, call(1, 2, length=4)).tokens == plain((1, 2), 4)


def test_when_memory_runs_out_what_is_only_remembered_goes_first():
    served = model()
    engine = target_engine(served)
    finish(engine, call(5, 6, length=2))
    forward = served.forward

    def tight(steps):
        if len(served.cache) > 1:
            raise CapacityError("no KV blocks")
        return forward(steps)

    served.forward = tight
    assert finish(engine, call(1, 2, length=4)).tokens == plain((1, 2), 4)
    assert len(served.cache) == 1


def test_the_observer_hears_of_every_change():
    heard = []
    engine = target_engine(model())
    engine._on_change = lambda active, reused: heard.append((active, reused))
    finish(engine, call(1, 2, 3, length=2, request_id="a"))
    finish(engine, call(1, 2, 3, 4, length=2, request_id="a"))
    engine.stop("a")
    assert heard == [(1, 0), (1, 3), (0, 0)]


def test_a_call_that_has_its_answer_was_counted_before():
    heard = []
    engine = target_engine(model())
    engine._on_change = lambda active, reused: heard.append(active)
    sink = FakeSink()
    sink.send = lambda emission: heard.append("answer")
    engine.submit(call(1, 2, 3, length=1, request_id="a"), sink)
    engine.step()
    assert heard == [1, "answer"]


def test_a_model_that_is_unloaded_holds_nothing_any_more():
    heard = []
    engine = target_engine(model())
    engine._on_change = lambda active, reused: heard.append(active)
    finish(engine, call(1, 2, 3, length=2, request_id="a"))  # its `stop` will not come
    running = FakeSink()
    engine.submit(call(4, 5, length=20), running)
    engine.step()
    engine.close()
    assert heard == [1, 2, 0]
    assert (running.failure, running.code) == ("the server is stopping", "UNAVAILABLE")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (call(), "input_ids: no tokens"),
        (call(1, VOCAB), "outside the vocabulary of 12"),
        (call(1, -1), "outside the vocabulary"),
        (call(1, length=0), "request_output_len: 0"),
        (call(*([1] * 64)), "max_seq_len is 64"),
        (call(1, draft_input_ids=(1, 2), draft_logits=np.zeros((1, VOCAB))), "1 rows for 2"),
    ],
)
def test_a_call_that_cannot_work_is_refused_with_the_reason(wrong, message):
    sink = finish(target_engine(model(max_seq_len=64)), wrong)
    assert message in sink.failure
    assert sink.code == "INVALID_ARG"
    assert sink.emissions == []
