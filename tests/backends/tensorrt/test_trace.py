"""What a trace of engines foretells is what their loop does, through the stand-in's bindings."""

import numpy as np
import pytest

from tests.backends.tensorrt.fake_bindings import continuation, teacher
from toolkit.errors import InputError
from toolkit.measure.run import Conditions, EncodedPrompt, measure_group
from toolkit.measure.time_steps import draft_lengths, measure_steps
from toolkit.measure.trace_outputs import Wanted, target_outputs
from toolkit.measure.trace_rounds import expected_rounds
from toolkit.recipe.schema import Sampling
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.trace import TracedText
from toolkit.store import Store

TOKENS, DEPTH = 32, 8


def prompt_that_repeats(number, copied):
    """Its text goes on with `copied` tokens that stand in it already, after the same token."""
    length = copied + 4 + number
    text = continuation([0] * (length - 1) + [number], copied)  # depends on the length and `number`
    filler = [200 + number] * (length - copied - 2)
    return (number, *text, *filler, number)


PROMPTS = [
    EncodedPrompt(f"p{number}", "d", prompt_that_repeats(number, copied))
    for number, copied in enumerate((2, 5, 9, 14), 1)
]


def texts_of(runtime):
    return [
        TracedText(p.tokens, tuple(continuation(list(p.tokens), TOKENS + DEPTH)), SamplingParams())
        for p in PROMPTS
    ]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("drafter", ["draft_target", "ngram"])
def test_every_draft_length_is_foretold_to_the_token(drafter, batch, opened):
    runtime, _ = opened(drafter)
    traces = [runtime.tracer().trace(text, DEPTH) for text in texts_of(runtime)]
    shared = Conditions(max_tokens=TOKENS, sampling=Sampling(), stop_tokens=frozenset())
    accepted = 0
    for k in range(1, DEPTH + 1):
        for start in range(0, len(PROMPTS), batch):
            group = PROMPTS[start : start + batch]
            loop = runtime.loop(draft_len=DEPTH)
            run = measure_group(loop, group, k=k, round="r", conditions=shared)
            for record, trace in zip(run.requests, traces[start : start + batch], strict=True):
                expected = expected_rounds(trace, Fixed(k), wanted=TOKENS - 1)
                assert record.verify_steps == pytest.approx(expected.verify_steps)
                assert record.accepted_tokens == pytest.approx(expected.accepted)
                assert record.draft_tokens == pytest.approx(expected.drafted)
                accepted += record.accepted_tokens
    assert accepted > 4 * DEPTH


def test_a_copied_stretch_stands_from_its_first_token(opened):
    runtime, _ = opened("ngram")
    trace = runtime.tracer().trace(texts_of(runtime)[2], DEPTH)
    # Nine tokens are copied; prefill says the first, so the draft from the first start has eight.
    assert trace.accept[0].tolist() == [1.0] * 8
    assert trace.accept[1].tolist() == [1.0] * 7 + [0.0]


def test_a_draft_engine_is_asked_for_one_token_after_every_beginning(opened):
    """The student errs after a text whose length is a multiple of four."""
    runtime, bindings = opened("draft_target")
    [text] = texts_of(runtime)[:1]
    trace = runtime.tracer().trace(text, DEPTH)
    lengths = len(text.prompt) + 1 + np.arange(len(text.output) - 1)
    assert trace.accept[:, 0].tolist() == [float(length % 4 != 0) for length in lengths]
    draft = bindings.executors[1]
    assert [request.max_tokens for request in draft.requests] == [1] * len(lengths)
    assert [len(request.input_token_ids) for request in draft.requests] == lengths.tolist()


def test_where_the_draft_engine_is_full_nothing_is_offered(opened):
    runtime, _ = opened("draft_target")
    most = runtime.executors["draft"].max_seq_len
    prompt = tuple(range(1, most - 9))
    text = TracedText(prompt, tuple(continuation(list(prompt), 20)), SamplingParams())
    trace = runtime.tracer().trace(text, DEPTH)
    # From start i the text has len(prompt) + 1 + i tokens; drafts may fill what is left.
    left = [most - len(prompt) - 1 - i for i in range(19)]
    assert trace.offered.tolist() == [min(max(room, 0), DEPTH) for room in left]
    assert 0 in trace.offered
    assert not trace.accept[trace.offered == 0].any()


def test_texts_come_from_the_target_and_are_kept(opened, tmp_path):
    runtime, bindings = opened("ngram")
    store = Store(tmp_path / "store")
    wanted = Wanted(
        engine={"engine": "e"}, sampling=Sampling(), max_tokens=TOKENS, stop_tokens=frozenset()
    )

    def outputs():
        return target_outputs(
            lambda: runtime.loop(draft_len=1), runtime.token_probs, PROMPTS, wanted, store, batch=4
        )

    first = outputs()
    assert first.generated_tokens == len(PROMPTS) * TOKENS
    for prompt, text in zip(PROMPTS, first.texts, strict=True):
        assert list(text.output) == continuation(list(prompt.tokens), TOKENS)
    asked = len(bindings.executors[0].requests)
    assert outputs().cached
    assert len(bindings.executors[0].requests) == asked


def test_a_log_is_held_against_the_targets_own_choices(opened):
    runtime, _ = opened("ngram")
    prompt = PROMPTS[0].tokens
    output = continuation(list(prompt), 6)
    output[3] = (output[3] + 1) % 250  # what follows it follows from it
    output[4:] = [teacher([*prompt, *output[:4]]), 0]
    probs = runtime.token_probs(prompt, output, SamplingParams())
    assert probs.tolist() == [1, 1, 1, 0, 1, 0]
    with pytest.raises(InputError, match="logits"):
        runtime.token_probs(prompt, output, SamplingParams(temperature=0.7))


@pytest.mark.parametrize("drafter", ["draft_target", "ngram"])
def test_steps_are_timed_with_drafts_of_the_length_that_was_asked_for(drafter, opened):
    runtime, bindings = opened(drafter)
    times = measure_steps(
        runtime.timed_loop,
        runtime.max_seq_len,
        text=continuation([1], 100),
        batches=(1, 4),
        longest=DEPTH,
        contexts=(10, 40),
        sampling=SamplingParams(),
        rounds=(2, 2),
    )
    lengths = draft_lengths(DEPTH)
    assert sorted({point.drafted for point in times.points}) == lengths
    assert len(times.points) == 2 * 2 * len(lengths)
    for point in times.points:
        assert 0 < point.verify_ns < point.total_ns
        assert (point.draft_ns > 0) == (point.drafted > 0)
    asked = [r.external_draft_tokens_config for r in bindings.executors[0].requests]
    drafted = [len(config.tokens) for config in asked if config]
    assert set(drafted) == set(lengths) - {0}
    prompts = 2 * (1 + 4)  # rounds, requests of the two batch sizes
    stood = times.emitted_tokens - (len(asked) - prompts)
    assert 0 <= stood < 0.05 * sum(drafted)
