"""What one group of prompts leaves behind, with a loop whose every step is written down."""

import pytest

from tests.measure.fake_loop import MS, FakeClock, FakeLoop, FakeTokenizer, endless
from toolkit.measure.metrics import tpot_ns
from toolkit.measure.prompts import Prompt
from toolkit.measure.run import Conditions, EncodedPrompt, encode_prompt, measure_group
from toolkit.recipe.schema import Sampling

STOP = 99


def prompts(*ids):
    return [EncodedPrompt(name, "edit", (10 + i, 11, 12)) for i, name in enumerate(ids)]


def conditions(max_tokens, **sampling):
    return Conditions(
        max_tokens=max_tokens, sampling=Sampling(**sampling), stop_tokens=frozenset({STOP})
    )


def first_then(prefill_ms, step_ms):
    return lambda requests, first: prefill_ms if first else step_ms


def measure(loop, group, k=4, max_tokens=9, **sampling):
    return measure_group(
        loop, group, k=k, round="r", conditions=conditions(max_tokens, **sampling), clock=loop.clock
    )


def test_the_worked_trace():
    emissions = [([5], 0, 0), ([1, 2, 3, 4], 3, 4), ([6], 0, 4), ([7, 8, 9], 2, 4)]
    loop = FakeLoop(FakeClock(), lambda request: iter(emissions), first_then(100, 40))
    run = measure(loop, prompts("a"))
    (record,) = run.requests
    assert record.output_tokens == 9
    assert record.verify_steps == 3
    assert record.drafted_per_step == (4, 4, 4)
    assert record.accepted_per_step == (3, 0, 2)
    assert (record.ttft_ns, record.e2e_ns) == (100 * MS, 220 * MS)
    assert record.chunk_ns == (100 * MS, 140 * MS, 180 * MS, 220 * MS)
    assert (record.prompt_tokens, record.prefill_tokens, record.finish) == (3, 1, "length")
    assert (record.bigrams, record.unique_bigrams) == (8, 8)
    assert (run.wall_ns, run.emitted_tokens) == (220 * MS, 9)


def test_the_batch_stays_full_until_the_slowest_is_measured():
    def step(request, number):
        if number == 0:
            return [0], 0, 0
        # The first prompt gets four tokens a step, the second gets one.
        return ([number] * 4, 3, 3) if request.prompt[0] == 10 else ([number], 0, 3)

    # A step with two requests takes 20 ms, with one it would take 10 ms.
    loop = FakeLoop(FakeClock(), endless(step), lambda requests, first: 10 * len(requests))
    run = measure(loop, prompts("fast", "slow"), k=3, max_tokens=5)
    fast, slow = run.requests
    assert set(loop.together) == {2}  # never a half-empty batch
    assert tpot_ns(fast) == 5 * MS  # 20 ms for four tokens
    assert tpot_ns(slow) == 20 * MS
    assert fast.verify_steps == 1  # what the fast one did afterwards is not its record
    assert slow.verify_steps == 4
    # All that was emitted in 5 steps: 2 + 4 x (4 + 1).
    assert (run.emitted_tokens, run.wall_ns) == (22, 100 * MS)


def test_a_draft_that_passes_the_wanted_length_counts_whole():
    # 1 + 4 + 4 = 9 tokens in two steps of 40 ms, wanted: 8. Cutting the last step's tokens off
    # would charge speculation for a step whose tokens it could not keep.
    loop = FakeLoop(
        FakeClock(), endless(lambda r, n: ([n] * 4, 3, 3) if n else ([0], 0, 0)), first_then(90, 40)
    )
    (record,) = measure(loop, prompts("a"), k=3, max_tokens=8).requests
    assert record.output_tokens == 9
    assert tpot_ns(record) == 10 * MS


def test_nobody_is_timed_while_another_is_in_prefill():
    def step(request, number):
        if request.prompt[0] == 10:  # first token in the first step, then it decodes on
            return ([number], 0, 0)
        return ([number], 0, 0) if number >= 2 else ([], 0, 0)  # first token in the third step

    def step_ms(requests, first):
        return 100 if len(loop.together) <= 3 else 10  # three slow prefill steps

    loop = FakeLoop(FakeClock(), endless(step), step_ms)
    early, late = measure(loop, prompts("early", "late"), k=0, max_tokens=5).requests
    # Both records begin with the token of the third step, at 300 ms.
    assert early.ttft_ns == late.ttft_ns == 300 * MS
    assert tpot_ns(early) == tpot_ns(late) == 10 * MS
    assert early.output_tokens == late.output_tokens == 5


def test_a_stop_token_closes_the_record_and_drops_what_follows():
    def step(request, number):
        # Two tokens a step; the second step has the stop token in the middle.
        return ([0], 0, 0) if number == 0 else ([number, STOP if number == 2 else 50, 7], 2, 2)

    loop = FakeLoop(FakeClock(), endless(step), first_then(100, 30))
    (record,) = measure(loop, prompts("a"), k=2, max_tokens=50).requests
    # 1 + 3 + (2, STOP): the 7 after it is dropped.
    assert record.output_tokens == 6
    assert record.accepted_per_step == (2, 2)
    assert record.finish == "stop"
    assert tpot_ns(record) == 12 * MS  # 60 ms for five tokens


def test_the_loop_itself_does_not_stop():
    loop = FakeLoop(FakeClock(), endless(lambda r, n: ([n], 0, 0)), first_then(1, 1))
    measure(loop, prompts("a", "b"), k=4, max_tokens=10)
    for request in loop.submitted:
        assert request.stop_tokens == frozenset()
        assert request.draft_len == 4
        # The other one may take ten steps while this one accepts four drafts in each.
        assert request.max_tokens >= 10 * 5


def test_an_interrupted_group_leaves_the_loop_empty():
    loop = FakeLoop(FakeClock(), endless(lambda r, n: ([n], 0, 0)), first_then(1, 1))
    loop.fail_at = 3
    with pytest.raises(KeyboardInterrupt):
        measure(loop, prompts("a", "b"))
    assert loop.running == {}


def test_each_prompt_has_its_own_seed_and_keeps_it_for_every_k():
    loop = FakeLoop(FakeClock(), endless(lambda r, n: ([n], 0, 0)), first_then(1, 1))
    for k in (0, 4):
        measure(loop, prompts("a", "b"), k=k, temperature=0.8, top_k=5, top_p=0.9, seed=2**63 - 1)
    seeds = [request.sampling.seed for request in loop.submitted]
    assert seeds[0] != seeds[1]
    assert seeds[:2] == seeds[2:]
    assert all(0 <= seed < 2**63 for seed in seeds)
    sampling = loop.submitted[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.8, 5, 0.9)


def test_a_raw_prompt_goes_in_as_it_stands():
    tokenizer = FakeTokenizer()
    assert encode_prompt(tokenizer, "code", Prompt("x", "if", raw=True)).tokens == (105, 102)
    assert encode_prompt(tokenizer, "code", Prompt("x", "if")).tokens == (1, 105, 102, 2)
