"""A trace of a real engine in float32 says exactly what measuring it finds."""

import sys
from functools import partial

import numpy as np
import pytest

from tests.engine_fixtures import tiny_runtime
from tests.measure.test_trace_rounds import models
from toolkit.measure.run import Conditions, EncodedPrompt, measure_group
from toolkit.measure.trace_outputs import Wanted, target_outputs
from toolkit.measure.trace_rounds import expected_rounds
from toolkit.recipe.schema import Sampling
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.loop import SpeculativeLoop
from toolkit.speculation.teacher_forced import teacher_forced, true_token_probs
from toolkit.store import Store
from toolkit.tuning.grid import Grid
from toolkit.tuning.trace_mode import trace

KS = tuple(range(1, 9))


@pytest.fixture(scope="module")
def prompts():
    """Twelve prompts of 4 to 90 tokens, each a phrase said again and again."""
    rng = np.random.default_rng(0)
    phrases = [rng.integers(0, 256, rng.integers(4, 30)).tolist() for _ in range(12)]
    return [EncodedPrompt(f"p{i}", "d", tuple(phrase * 3)) for i, phrase in enumerate(phrases)]


def margin(target, text):
    """By how much the closest of its choices was made."""
    rows = np.sort(np.concatenate(list(teacher_forced(target, text.prompt, text.output))), axis=1)
    return (rows[:, -1] - rows[:, -2]).min()


@pytest.mark.parametrize("drafter", ["draft_target", "ngram"])
def test_greedy_acceptance_is_predicted_exactly_at_every_k(tmp_path_factory, prompts, drafter):
    runtime = tiny_runtime(tmp_path_factory, drafter=drafter, noise=0.02, max_draft_len=8)
    tune = runtime.recipe.tune.model_copy(update={"k": KS, "max_tokens": 40})
    recipe = runtime.recipe.model_copy(update={"tune": tune})
    store = Store(tmp_path_factory.mktemp("store"))
    plan = Grid(KS, (1, 4), {"d": prompts})
    traced = trace(recipe, plan, runtime, {"engine": "e"}, store, None)
    assert traced.generated_tokens > 0
    # At a numerical tie a batch may choose otherwise than one request alone: then texts differ.
    clear = {id for (_, id), text in traced.texts.items() if margin(runtime.target, text) > 1e-4}
    assert len(clear) >= 8
    stop = frozenset(runtime.tokenizer.eos_ids)
    loop = runtime.loop(draft_len=8, max_prefill_tokens=sys.maxsize)
    conditions = Conditions(max_tokens=40, sampling=Sampling(), stop_tokens=stop)
    accepted = 0
    for k in KS:
        for start in range(0, len(prompts), 4):
            group = prompts[start : start + 4]
            run = measure_group(loop, group, k=k, round="r", conditions=conditions)
            for prompt, record in zip(group, run.requests, strict=True):
                if prompt.id not in clear:
                    continue
                found = expected_rounds(traced.traces["d", prompt.id], Fixed(k), wanted=39)
                assert found.verify_steps == record.verify_steps
                assert found.accepted == record.accepted_tokens
                assert found.drafted == record.draft_tokens
                assert found.tokens == record.output_tokens - 1
                accepted += record.accepted_tokens
    assert accepted > 100


def test_outputs_are_generated_once_and_kept_for_what_they_depend_on(tmp_path, prompts):
    target, _ = models(0)
    few = [EncodedPrompt(p.id, p.domain, tuple(t % 5 for t in p.tokens)) for p in prompts]

    def outputs(**changes):
        given = {
            "engine": {"engine": "e"},
            "sampling": Sampling(),
            "max_tokens": 6,
            "stop_tokens": frozenset(),
        }
        return target_outputs(
            lambda: SpeculativeLoop(target, None, Fixed(0)),
            partial(true_token_probs, target),
            few,
            Wanted(**{**given, **changes}),
            Store(tmp_path),
            batch=5,
        )

    first, again = outputs(), outputs()
    assert (first.generated_tokens, first.cached) == (72, False)
    assert (again.generated_tokens, again.cached) == (0, True)
    assert [t.output for t in again.texts] == [t.output for t in first.texts]
    assert [t.prompt for t in again.texts] == [p.tokens for p in few]
    sampled = outputs(sampling=Sampling(temperature=1.0))
    assert not sampled.cached
    assert all(len(t.target_probs) == 6 for t in sampled.texts)
    assert all((t.target_probs > 0).all() for t in sampled.texts)
    assert not outputs(engine={"engine": "other"}).cached
    assert not outputs(stop_tokens=frozenset({1})).cached
    few[0], few[1] = few[1], few[0]
    assert not outputs().cached


def test_an_answer_of_one_token_has_nothing_to_trace(tmp_path_factory, prompts):
    runtime = tiny_runtime(tmp_path_factory, drafter="ngram")
    recipe = runtime.recipe
    plan = Grid((2,), (1,), {"d": prompts[:2]})
    everything = frozenset(range(runtime.target.vocab_size))
    runtime.tokenizer.eos_ids = everything
    traced = trace(
        recipe, plan, runtime, {"engine": "e"}, Store(tmp_path_factory.mktemp("s")), None
    )
    assert all(len(t.output) == 1 for t in traced.texts.values())
    for found in traced.traces.values():
        assert expected_rounds(found, Fixed(2)).verify_steps == 0
