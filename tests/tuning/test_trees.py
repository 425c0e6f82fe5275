"""Trees that a trace of real heads suggests bring in the loop what they are said to bring."""

from dataclasses import replace

import numpy as np
import pytest

from tests.head_fixtures import repeated_phrases, tiny_head_runtime
from toolkit.registry import DRAFTERS
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request
from toolkit.speculation.teacher_forced import true_token_probs
from toolkit.speculation.trace import TracedText
from toolkit.speculation.trees import Tree
from toolkit.tuning.trees import find_trees

WANTED, DEPTH = 40, 3  # tokens after the first; levels of the deepest tree
COUNT, MANY = 12, 120
OWN = [[0], [1], [0, 0], [2], [0, 1], [1, 0], [3], [0, 0, 0]]
HEADS = {
    "medusa": {"max_draft_len": 12, "medusa_choices": OWN},
    "eagle": {"max_draft_len": 12, "num_eagle_layers": 3, "eagle_choices": OWN},
}


@pytest.fixture(scope="module", params=HEADS)
def runtime(request, tmp_path_factory):
    return tiny_head_runtime(tmp_path_factory, request.param, **HEADS[request.param])


def traces(runtime, temperature=0.0, count=COUNT):
    """Of the target's own answers."""
    found = []
    for seed, prompt in enumerate(repeated_phrases(count)):
        sampling = SamplingParams(temperature, seed=seed)
        request = Request(prompt, WANTED + 1 + DEPTH, sampling)
        [plain] = runtime.loop(draft_len=0).generate([request])
        output, probs = tuple(plain.tokens), None
        if temperature:
            probs = true_token_probs(runtime.target, prompt, output, sampling)
        text = TracedText(prompt, output, sampling, probs)
        found.append(runtime.drafter().trace(text, DEPTH))
    return found


def decoded(runtime, choices, temperature=0.0, count=COUNT):
    """What each verify step accepts that starts before the wanted tokens came."""
    options = runtime.recipe.speculation
    changes = DRAFTERS[options.drafter].with_tree(options, Tree.model_validate(choices))
    speculation = options.model_copy(update=changes)
    recipe = runtime.recipe.model_copy(update={"speculation": speculation})
    loop, accepted = replace(runtime, recipe=recipe).loop(), []
    requests = [
        Request(prompt, WANTED + 2 + DEPTH, SamplingParams(temperature, seed=1000 + seed))
        for seed, prompt in enumerate(repeated_phrases(count))
    ]
    for output in [loop.generate(requests[i : i + 8]) for i in range(0, count, 8)]:
        for stats in [each.stats for each in output]:
            counts = np.array(stats.accepted_per_step)
            places = np.cumsum(counts + 1) - (counts + 1)
            accepted += counts[places < WANTED].tolist()
    return accepted


def test_greedy_decoding_accepts_exactly_what_the_trace_says(runtime):
    found = find_trees(runtime.recipe.speculation, traces(runtime), WANTED)
    assert found.own.choices == tuple(map(tuple, OWN))
    sizes = [len(tree.choices) for tree in found.best]
    assert sizes == sorted(set(sizes))
    assert len(found.same_size.choices) <= len(OWN)
    assert found.same_size.acceptance_length > found.own.acceptance_length > 1.05
    for tree in (found.own, *found.best):
        accepted = decoded(runtime, tree.choices)
        assert tree.acceptance_length == pytest.approx(1 + np.mean(accepted))


def test_sampled_medusa_accepts_in_the_mean_what_the_trace_says(tmp_path_factory):
    runtime = tiny_head_runtime(tmp_path_factory, "medusa", **HEADS["medusa"])
    found = find_trees(runtime.recipe.speculation, traces(runtime, 0.5, MANY), WANTED)
    accepted = decoded(runtime, found.same_size.choices, 0.5, MANY)
    assert found.same_size.acceptance_length == pytest.approx(1 + np.mean(accepted), rel=0.02)
    assert np.mean(accepted) > 0.2
