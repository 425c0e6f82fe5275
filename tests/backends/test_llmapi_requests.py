"""Both ways to the LLM API: the same text, counts and records, whoever streams them."""

from __future__ import annotations

import time

import pytest

from tests.backends.fake_deployment import FakeDeployment
from tests.backends.llmapi import ANSWER, PROMPT, WAYS, limits, opened
from tests.tiny import write_tokenizer
from toolkit.backends.llmapi_requests import LlmLimits, Piece, StreamingExecutor, TokenStream
from toolkit.backends.llmapi_runtime import LlmRuntime, limits_of
from toolkit.backends.tensorrt.loops import EngineLoop
from toolkit.checkpoint.tokenizer import load_tokenizer
from toolkit.errors import InputError, RunError
from toolkit.measure.dialects import DIALECTS, count
from toolkit.measure.metrics import acceptance_length, acceptance_rate
from toolkit.measure.run import Conditions, EncodedPrompt, measure_group
from toolkit.recipe.schema import Recipe, Sampling
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import Request


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


def group(size: int) -> list[EncodedPrompt]:
    return [EncodedPrompt(f"p{i}", "code", (3, 4, 5 + i)) for i in range(size)]


CONDITIONS = Conditions(max_tokens=9, sampling=Sampling(), stop_tokens=frozenset())


def test_a_deployment_becomes_records_of_integers(way):
    # The trace worked out in metrics: prefill emits 1, three steps accept 3, 0, 2 of 4.
    with opened(way, FakeDeployment()) as executor:
        loop = EngineLoop(executor, path_len=4)
        run = measure_group(loop, group(1), k=4, round="r0", conditions=CONDITIONS)
    (record,) = run.requests
    assert record.drafted_per_step == (4, 4, 4)
    assert record.accepted_per_step == (3, 0, 2)
    assert (record.prefill_tokens, record.output_tokens, record.verify_steps) == (1, 9, 3)
    assert (record.k, record.batch_size, record.prompt_tokens) == (4, 1, 3)
    assert record.finish == "length"
    assert len(record.chunk_ns) == 4
    assert list(record.chunk_ns) == sorted(record.chunk_ns)
    assert acceptance_rate([record]) == 5 / 12
    assert acceptance_length([record]) == 1 + 5 / 3
    assert DIALECTS["trtllm-bench"].rate(count([record])) == 5 / 16


def test_requests_of_a_group_are_told_apart(way):
    with opened(way, FakeDeployment(together=3)) as executor:
        loop = EngineLoop(executor, path_len=4)
        run = measure_group(loop, group(3), k=4, round="r0", conditions=CONDITIONS)
    assert [record.prompt_id for record in run.requests] == ["p0", "p1", "p2"]
    for record in run.requests:
        assert record.output_tokens >= 9
        assert record.batch_size == 3


def test_many_requests_at_once_lose_nothing(way):
    with opened(way, FakeDeployment()) as executor:
        loop = EngineLoop(executor, path_len=4)
        outputs = loop.generate([Request((i, 1), 20 + i) for i in range(24)])
    for i, output in enumerate(outputs):
        assert output.tokens == [(i + 1 + 7 * j) % 101 for j in range(20 + i)]
        assert output.stats.accepted_tokens == 20 + i - 1 - output.stats.verify_steps


def test_a_finished_request_has_its_tokens_and_counts(way):
    with opened(way, FakeDeployment()) as executor:
        (output,) = EngineLoop(executor, path_len=4).generate([Request(PROMPT, 9)])
    assert output.tokens == ANSWER
    assert output.finish_reason == "length"
    assert output.stats.accepted_per_step == [3, 0, 2]
    assert output.stats.drafted_per_step == [4, 4, 4]


def test_plain_decoding_has_no_drafts(way):
    with opened(way, FakeDeployment(k=0), k=0) as executor:
        (output,) = EngineLoop(executor, path_len=0).generate([Request(PROMPT, 3)])
    assert output.tokens == ANSWER[:3]
    assert output.stats.accepted_per_step == [0, 0]
    assert output.stats.drafted_per_step == [0, 0]


def test_a_stop_token_ends_the_text_and_stays_in_it(way):
    with opened(way, FakeDeployment()) as executor:
        loop = EngineLoop(executor, path_len=4)
        (output,) = loop.generate([Request(PROMPT, 50, stop_tokens=frozenset({33}))])
    assert output.tokens == [12, 19, 26, 33]
    assert output.finish_reason == "stop"


def test_end_of_text_does_not_stop_a_request_that_does_not_ask_for_it(way):
    with opened(way, FakeDeployment(eos=26)) as executor:
        (output,) = EngineLoop(executor, path_len=4).generate([Request(PROMPT, 9)])
    assert output.tokens == ANSWER


def test_responses_of_several_steps_are_refused(way):
    # The second response would carry 4 + 1 tokens of two steps, the third 3 + 4.
    with opened(way, FakeDeployment(merge=2), **_interval(way)) as executor:
        loop = EngineLoop(executor, path_len=4)
        with pytest.raises(RunError, match=r"one response carries 7 tokens.* stream_interval: 1"):
            loop.generate([Request(PROMPT, 40)])
        assert loop.active == 0


def _interval(way):
    return {"stream_interval": 2} if way == "in process" else {}


def test_a_request_can_be_cancelled(way):
    with opened(way, FakeDeployment()) as executor:
        loop = EngineLoop(executor, path_len=4)
        gone, kept = loop.submit(Request(PROMPT, 200)), loop.submit(Request(PROMPT, 9))
        assert loop.cancel(gone).finish_reason == "cancelled"
        tokens = []
        while loop.active:
            for chunk in loop.step():
                assert chunk.request == kept
                tokens += chunk.tokens
        assert tokens == ANSWER


class SilentStream(TokenStream):
    def __iter__(self):
        time.sleep(5)
        yield Piece([1], "stop")

    def close(self):
        pass


class EndlessStream(TokenStream):
    def __iter__(self):
        yield Piece([1])

    def close(self):
        pass


class OddStream(TokenStream):
    def __iter__(self):
        yield Piece([1], "timeout")

    def close(self):
        pass


class BugStream(TokenStream):
    def __iter__(self):
        raise KeyError("a bug of ours")
        yield

    def close(self):
        pass


class FakeExecutor(StreamingExecutor):
    """Streams of one kind, without anything behind them."""

    def __init__(self, stream, timeout_s=5.0):
        super().__init__("somewhere", limits(), timeout_s=timeout_s)
        self.stream = stream

    def open_stream(self, prompt, max_tokens, sampling, stop_tokens):
        return self.stream()

    def shutdown(self):
        pass


@pytest.mark.parametrize(
    ("stream", "timeout_s", "said"),
    [
        (SilentStream, 0.05, r"somewhere: no answer in 0\.05 s"),
        (EndlessStream, 5.0, "ended without a finish reason"),
        (OddStream, 5.0, "ended with 'timeout', expected one of stop, length, cancelled"),
    ],
)
def test_streams_that_go_wrong_say_how(stream, timeout_s, said):
    executor = FakeExecutor(stream, timeout_s)
    executor.submit([1], 5, SamplingParams())
    with pytest.raises(RunError, match=said):
        wait_often(executor)


def wait_often(executor):
    for _ in range(3):
        executor.wait()


class TwoPieceStream(TokenStream):
    def __iter__(self):
        yield Piece([1])
        yield Piece([2, 3], "length")

    def close(self):
        pass


def test_a_step_has_at_most_one_answer_of_each_request():
    executor = FakeExecutor(TwoPieceStream)
    first, second = (executor.submit([1], 3, SamplingParams()) for _ in range(2))
    while executor._inbox.qsize() < 4:
        time.sleep(0.001)
    seen = {first: [], second: []}
    while executor._streams:
        answers = executor.wait()
        assert len({answer.request for answer in answers}) == len(answers)
        for answer in answers:
            seen[answer.request].append((answer.tokens, answer.iterations, answer.reason))
    # Nothing is lost, and the iterations of each request count its own responses.
    assert seen[first] == seen[second] == [([1], 1, None), ([2, 3], 2, "length")]


def test_late_answers_to_a_cancelled_request_are_nobodys():
    executor = FakeExecutor(TwoPieceStream, timeout_s=0.05)
    gone = executor.submit([1], 3, SamplingParams())
    while executor._inbox.qsize() < 2:
        time.sleep(0.001)
    executor.cancel(gone)
    executor.cancel(gone)  # once more is no harm
    with pytest.raises(RunError, match="no answer"):
        executor.wait()


def test_a_bug_keeps_its_own_exception():
    executor = FakeExecutor(BugStream)
    executor.submit([1], 5, SamplingParams())
    with pytest.raises(KeyError):
        executor.wait()


def recipe(**changes):
    data = {
        "name": "lab",
        "target": {"checkpoint": "org/target"},
        "speculation": {"drafter": "ngram", "max_draft_len": 4},
        "engine": {"max_batch_size": 4, "max_input_len": 64, "max_seq_len": 128},
    }
    return Recipe.model_validate(data | changes)


@pytest.fixture
def tokenizer(tmp_path):
    write_tokenizer(tmp_path)
    return load_tokenizer(tmp_path)


def test_limits_are_the_recipes(tokenizer):
    vocab = tokenizer.vocab_size
    assert limits_of(recipe(), tokenizer) == LlmLimits(
        path_len=4, vocab_size=vocab, max_seq_len=128, max_batch_size=4
    )
    assert limits_of(recipe(speculation={"drafter": "none"}), tokenizer).path_len == 0


def test_a_runtime_drafts_what_was_deployed(way, tokenizer):
    with opened(way, FakeDeployment()) as executor:
        runtime = LlmRuntime(recipe(), {}, tokenizer, executor)
        (output,) = runtime.loop(draft_len=4).generate([Request(PROMPT, 9)])
        assert output.tokens == ANSWER
        with pytest.raises(InputError, match="always drafts 4"):
            runtime.loop(draft_len=2)
        with pytest.raises(InputError, match="answers with tokens"):
            runtime.drafter()
        with pytest.raises(InputError, match="answers with tokens"):
            _ = runtime.target
        runtime.close()
