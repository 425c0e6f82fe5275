"""Where an unsure drafter stops, as the trace says and as the loop does it."""

import numpy as np
import pytest
from scipy.stats import ttest_ind

from tests.engine_fixtures import tiny_runtime
from tests.head_fixtures import repeated_phrases, tiny_head_runtime
from tests.measure.test_trace_rounds import PROMPTS, models
from tests.tuning.test_trace_sampled import CHAIN, DRAFTERS, target
from toolkit.measure.trace_rounds import expected_rounds
from toolkit.speculation.draft_length import Confidence, Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop
from toolkit.speculation.teacher_forced import true_token_probs
from toolkit.speculation.trace import DraftTrace, TracedText

LEAST = 0.2
THRESHOLDS = (0.2, 0.5, 0.95)


def test_a_threshold_cuts_what_is_offered_as_by_hand():
    sure = np.array([[0.9, 0.5, 0.9], [0.5, 0.9, 0.9], [0.9, 0.9, 0.4]])
    trace = DraftTrace(np.zeros((3, 3)), np.array([3, 3, 1]), sure=sure)
    assert trace.stopping_below(0.0) is trace
    assert trace.stopping_below(0.5).offered.tolist() == [3, 3, 1]
    assert trace.stopping_below(0.6).offered.tolist() == [1, 0, 1]


def test_a_trace_that_was_not_asked_says_so():
    trace = DraftTrace(np.zeros((3, 3)), np.array([3, 3, 1]))
    with pytest.raises(ValueError, match="how sure"):
        expected_rounds(trace, Confidence(3, 0.4))


def check(model, drafter, prompts, tokens, depth):
    """The counts of every threshold; how many drafts the highest and the lowest make."""
    drafted = dict.fromkeys(THRESHOLDS, 0)
    for prompt in prompts:
        request = Request(tuple(prompt), tokens)
        [plain] = SpeculativeLoop(model, None, Fixed(0)).generate([request])
        text = TracedText(request.prompt, tuple(plain.tokens), SamplingParams())
        trace = drafter.trace(text, depth, LEAST)
        for threshold in THRESHOLDS:
            policy = Confidence(depth, threshold)
            found = expected_rounds(trace, policy, limited=True)
            [output] = SpeculativeLoop(model, drafter, policy).generate([request])
            assert output.tokens == plain.tokens
            assert found.verify_steps == output.stats.verify_steps
            assert found.accepted == output.stats.accepted_tokens
            assert found.drafted == output.stats.draft_tokens
            drafted[threshold] += output.stats.draft_tokens
    assert drafted[0.95] < drafted[LEAST]


@pytest.mark.parametrize("name", ["draft_target", *DRAFTERS])
def test_greedy_drafts_end_exactly_where_the_trace_says(name):
    if name == "draft_target":
        for seed in range(4):
            model, draft = models(seed)
            check(model, DraftTargetDrafter(draft), PROMPTS, 41, 6)
    else:
        model = target()
        check(model, DRAFTERS[name](model), [(1, 2), (3, 0), (5, 4), (2, 2)], 41, 6)


@pytest.mark.parametrize(
    ("drafter", "options"),
    [
        ("draft_target", {"noise": 0.02, "max_draft_len": 5}),
        ("eagle3", {"max_draft_len": 5}),
        ("eagle", {"eagle_choices": [list(path) for path in CHAIN[:5]], "num_eagle_layers": 5}),
        ("medusa", {"medusa_choices": [[0], [1], [0, 0], [0, 1], [0, 0, 0]]}),
    ],
)
def test_greedy_drafts_of_an_engine_end_where_the_trace_says(tmp_path_factory, drafter, options):
    make = tiny_runtime if drafter == "draft_target" else tiny_head_runtime
    runtime = make(tmp_path_factory, drafter=drafter, **options)
    prompts = repeated_phrases(4)
    depth = runtime.recipe.speculation.max_depth
    check(runtime.target, runtime.drafter(), prompts, 32, depth)


@pytest.mark.parametrize("name", ["draft_target", *DRAFTERS])
def test_sampled_drafts_are_accepted_in_the_mean_as_the_trace_says(name):
    model, draft = models(7)
    drafter = DraftTargetDrafter(draft)
    if name != "draft_target":
        model = target()
        drafter = DRAFTERS[name](model)
    policy, predicted, measured = Confidence(4, 0.6), [], []
    for seed in range(200):
        params = SamplingParams(1.0, seed=seed)
        request = Request(PROMPTS[0], 41, params)
        [plain] = SpeculativeLoop(model, None, Fixed(0)).generate([request])
        probs = true_token_probs(model, request.prompt, plain.tokens, params)
        text = TracedText(request.prompt, tuple(plain.tokens), params, probs)
        predicted.append(expected_rounds(drafter.trace(text, 4, LEAST), policy, limited=True))
        again = Request(PROMPTS[0], 41, SamplingParams(1.0, seed=10_000 + seed))
        [output] = SpeculativeLoop(model, drafter, policy).generate([again])
        measured.append(output.stats)
    for count, counted in [("verify_steps", "verify_steps"), ("accepted", "accepted_tokens")]:
        said = [getattr(each, count) for each in predicted]
        found = [getattr(each, counted) for each in measured]
        assert ttest_ind(said, found, equal_var=False).pvalue > 0.001
