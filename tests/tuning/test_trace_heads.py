"""Traces of drafting heads on a real engine against decoding with them, in float32.

SPECTOOL_TEST_PROMPTS=40 asks 40 prompts, which takes minutes; sampled text needs them for 2 %.
"""

import os

import numpy as np
import pytest

from tests.head_fixtures import repeated_phrases, tiny_head_runtime
from toolkit.measure.trace_rounds import add, expected_rounds
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request
from toolkit.speculation.teacher_forced import true_token_probs
from toolkit.speculation.trace import TracedText

PROMPTS = int(os.environ.get("SPECTOOL_TEST_PROMPTS", "5"))
KS = tuple(range(1, 9))
TOKENS = 32
CHAIN = [[0], [0, 0], [0, 0, 0]]
HEADS = {
    "eagle3": {"max_draft_len": 8},
    "medusa": {"max_draft_len": 3, "medusa_choices": CHAIN},
}


@pytest.fixture(scope="module", params=HEADS)
def runtime(request, tmp_path_factory):
    return tiny_head_runtime(tmp_path_factory, request.param, **HEADS[request.param])


def traces(runtime, temperature):
    """One reading of each of the target's own answers."""
    found = []
    for seed, prompt in enumerate(repeated_phrases(max(PROMPTS, 30))[:PROMPTS]):
        sampling = SamplingParams(temperature, seed=seed)
        [plain] = runtime.loop(draft_len=0).generate([Request(prompt, TOKENS, sampling)])
        output = tuple(plain.tokens)
        probs = None
        if temperature:
            probs = true_token_probs(runtime.target, prompt, output, sampling)
        text = TracedText(prompt, output, sampling, probs)
        found.append((prompt, sampling, runtime.drafter().trace(text, max(KS))))
    return found


def decoded(runtime, found, k):
    requests = [Request(prompt, TOKENS, sampling, draft_len=k) for prompt, sampling, _ in found]
    loop = runtime.loop(draft_len=k)
    groups = [requests[start : start + 5] for start in range(0, len(requests), 5)]
    return [output.stats for group in groups for output in loop.generate(group)]


def test_greedy_acceptance_length_is_predicted_at_every_k(runtime):
    found = traces(runtime, 0.0)
    for k in KS:
        expected = add([expected_rounds(t, Fixed(k), limited=True) for _, _, t in found])
        stats = decoded(runtime, found, k)
        steps, accepted = (
            sum(s.verify_steps for s in stats), sum(s.accepted_tokens for s in stats),
        )  # fmt: skip
        assert accepted > 0
        assert expected.acceptance_length == pytest.approx(1 + accepted / steps, rel=0.02)


@pytest.mark.parametrize("k", [1, 2, 3, 8] if PROMPTS >= 40 else [3])
def test_sampled_acceptance_length_is_predicted_within_what_chance_allows(runtime, k):
    found = traces(runtime, 1.0)
    expected = add([expected_rounds(t, Fixed(k), limited=True) for _, _, t in found])
    counts = [n for s in decoded(runtime, found, k) for n in s.accepted_per_step]
    measured = 1 + float(np.mean(counts))
    chance = 4 * float(np.std(counts)) / np.sqrt(len(counts))  # of the loop's own draws
    assert abs(expected.acceptance_length - measured) < max(0.02 * measured, chance)
