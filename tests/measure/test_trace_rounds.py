"""The dynamic program against every outcome written out, and against loops that really decode."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.speculation.table_model import FakeTableModel, random_table
from toolkit.measure.trace_rounds import add, expected_rounds, play, tokens_per_step
from toolkit.speculation.draft_length import Adaptive, Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop
from toolkit.speculation.teacher_forced import true_token_probs
from toolkit.speculation.trace import DraftTrace, TracedText, by_position

chances = st.sampled_from([0.0, 0.25, 0.5, 0.8, 1.0])


def constant(a, length, depth):
    return DraftTrace(by_position(np.full(length, a), depth), np.full(length, depth))


def played(trace, policy, draws, limited):
    """Decode the text once: accept draft (start, depth) iff `draws` says so."""
    length = len(trace.accept)
    place, draft_len, steps, accepted_all = 0, policy.first(), [], []
    while place < length:
        drafted = min(draft_len, int(trace.offered[place]))
        if limited:
            drafted = min(drafted, length - place - 1)
        accepted = 0
        while (
            accepted < drafted and place + accepted < length and draws[place + accepted, accepted]
        ):
            accepted += 1
        steps.append(drafted)
        accepted_all.append(accepted)
        place += min(accepted + 1, length - place)
        draft_len = policy.following(draft_len, drafted, accepted)
    return steps, accepted_all


@settings(max_examples=60, deadline=None)
@given(
    st.lists(chances, min_size=2, max_size=7),
    st.sampled_from([Fixed(1), Fixed(2), Fixed(3), Adaptive(1, 3)]),
    st.booleans(),
)
def test_expectations_are_those_of_all_outcomes_together(r, policy, limited):
    trace = DraftTrace(
        by_position(np.array(r), 3), np.array([(3, 2, 3, 0)[i % 4] for i in range(len(r))])
    )
    steps = drafted = 0.0
    by_depth = np.zeros(3)
    for outcome in itertools.product([False, True], repeat=len(r)):
        weight = np.prod([a if hit else 1 - a for a, hit in zip(r, outcome, strict=True)])
        draws = {(i, d): outcome[i] for i in range(len(r)) for d in range(3)}
        rounds, accepted = played(trace, policy, draws, limited)
        steps += weight * len(rounds)
        drafted += weight * sum(rounds)
        by_depth += weight * np.array([sum(m > d for m in accepted) for d in range(3)])
    found = expected_rounds(trace, policy, limited=limited)
    assert found.verify_steps == pytest.approx(steps)
    assert found.drafted == pytest.approx(drafted)
    assert found.accepted_by_position == pytest.approx(by_depth)
    assert found.tokens == pytest.approx(len(r))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.sampled_from([Fixed(0), Fixed(3), Adaptive(1, 3)]),
    st.integers(1, 30),
)
def test_a_greedy_text_has_one_course_which_is_what_is_expected(stands, policy, wanted):
    offered = np.array([(3, 2, 3, 0)[i % 4] for i in range(len(stands))])
    trace = DraftTrace(by_position(np.array(stands, float), 3), offered)
    course = play(trace, policy, np.random.default_rng(0), wanted=wanted)
    found = expected_rounds(trace, policy, wanted=wanted)
    assert len(course.drafted) == found.verify_steps
    assert course.drafted.sum() == found.drafted
    assert course.emitted.sum() == found.tokens


def test_courses_of_a_sampled_text_are_in_the_mean_what_is_expected():
    trace, rng = constant(0.6, 30, 4), np.random.default_rng(0)
    courses = [play(trace, Fixed(4), rng) for _ in range(400)]
    found = expected_rounds(trace, Fixed(4))
    steps = np.mean([len(course.drafted) for course in courses])
    assert steps == pytest.approx(found.verify_steps, rel=0.02)
    assert all(course.emitted.sum() == 30 for course in courses)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 6))
def test_a_fixed_length_is_the_recursion_over_drafts_that_stood(r, k):
    s, steps = np.eye(k + 1)[0], 0.0
    for chance in r:
        steps += s[0]
        after = np.zeros(k + 1)
        after[1:] = s[:k] * chance
        after[0] = s[:k].sum() * (1 - chance) + s[k]
        s = after
    trace = DraftTrace(by_position(np.array(r), k), np.full(len(r), k))
    assert expected_rounds(trace, Fixed(k)).verify_steps == pytest.approx(steps)


@pytest.mark.parametrize(
    ("a", "k", "length"), [(0.7, 4, 2.77), (0.8, 4, 3.36), (0.4, 4, 1.65), (0.0, 4, 1.0)]
)
def test_the_speed_model_is_what_a_long_text_of_equal_chances_comes_to(a, k, length):
    assert round(tokens_per_step(a, k), 2) == length
    found = expected_rounds(constant(a, 4000, k), Fixed(k))
    assert found.acceptance_length == pytest.approx(tokens_per_step(a, k), rel=1e-3)


def test_a_draft_that_always_stands_pays_its_whole_length():
    assert tokens_per_step(1.0, 4) == 5
    assert expected_rounds(constant(1.0, 10, 4), Fixed(4)).verify_steps == 2


def test_no_round_starts_after_the_wanted_length_and_the_last_one_counts_whole():
    found = expected_rounds(constant(1.0, 12, 4), Fixed(4), wanted=6)
    # Two rounds of five: the second starts at token 5 and runs to 10.
    assert (found.verify_steps, found.tokens, found.accepted) == (2, 10, 8)


def test_counts_of_requests_add():
    one, two = (expected_rounds(constant(1.0, n, 4), Fixed(4)) for n in (5, 10))
    both = add([one, two])
    assert (both.verify_steps, both.tokens, both.acceptance_length) == (3, 15, 5)


VOCAB = 5
PROMPTS = [(1, 2, 3, 1, 2), (4, 0, 4), (2, 2, 1, 0)]


def models(seed):
    """A target and a draft that is often right."""
    target = random_table(seed, VOCAB, order=2, spread=1.5)
    draft = target + random_table(seed + 100, VOCAB, order=2, spread=0.7)
    return FakeTableModel(target), FakeTableModel(draft)


DRAFTERS = {"draft_target": DraftTargetDrafter, "ngram": lambda draft: NGramDrafter(1, 3)}


@pytest.mark.parametrize("policy", [*map(Fixed, range(1, 9)), Adaptive(1, 8)], ids=str)
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_decoding_does_exactly_what_the_trace_says(name, policy):
    for seed in range(4):
        target, draft = models(seed)
        drafter = DRAFTERS[name](draft)
        for prompt in PROMPTS:
            request = Request(prompt, 41)
            [plain] = SpeculativeLoop(target, None, Fixed(0)).generate([request])
            text = TracedText(prompt, tuple(plain.tokens), SamplingParams())
            found = expected_rounds(drafter.trace(text, 8), policy, limited=True)
            [output] = SpeculativeLoop(target, drafter, policy).generate([request])
            assert output.tokens == plain.tokens
            stats = output.stats
            assert found.verify_steps == stats.verify_steps
            assert found.drafted == stats.draft_tokens
            assert found.accepted == stats.accepted_tokens
            joint = [sum(m > d for m in stats.accepted_per_step) for d in range(8)]
            assert found.accepted_by_position.tolist() == joint


@pytest.mark.parametrize("sampling", [(1.0, 0, 1.0), (0.7, 3, 0.9)], ids=str)
@pytest.mark.parametrize("name", DRAFTERS)
def test_sampled_decoding_does_in_the_mean_what_the_trace_says(name, sampling):
    target, draft = models(7)
    drafter, policy, runs = DRAFTERS[name](draft), Fixed(4), 600
    predicted, measured = [], []
    for seed in range(runs):
        params = SamplingParams(*sampling, seed=seed)
        request = Request(PROMPTS[0], 41, params)
        [plain] = SpeculativeLoop(target, None, Fixed(0)).generate([request])
        probs = true_token_probs(target, request.prompt, plain.tokens, params)
        assert probs.min() > 0
        text = TracedText(request.prompt, tuple(plain.tokens), params, probs)
        predicted.append(expected_rounds(drafter.trace(text, 4), policy, limited=True).verify_steps)
        [output] = SpeculativeLoop(target, drafter, policy).generate([request])
        measured.append(output.stats.verify_steps)
    error = np.hypot(np.std(predicted), np.std(measured)) / np.sqrt(runs)
    assert abs(np.mean(predicted) - np.mean(measured)) < 3.5 * error
    # Fewer outcomes are left to chance than in a run.
    assert np.std(predicted) < np.std(measured) or name == "ngram"
