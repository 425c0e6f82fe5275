"""Medusa, EAGLE and EAGLE-3 on a real engine in float32: greedy text is the same token by token."""

import os
import re

import pytest

from tests.head_fixtures import repeated_phrases, tiny_head_runtime
from toolkit.speculation.draft_length import Adaptive, Confidence, Fixed
from toolkit.speculation.grammar import Guide
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop

PROMPTS = int(os.environ.get("SPECTOOL_TEST_PROMPTS", "6"))  # 30 take minutes
CHAIN = [[0], [0, 0], [0, 0, 0]]
TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 0]]
DRAFTERS = {
    "eagle3 chain": ("eagle3", {"max_draft_len": 4}),
    "eagle3 dynamic tree": (
        "eagle3",
        {
            "max_draft_len": 3,
            "use_dynamic_tree": True,
            "dynamic_tree_max_top_k": 3,
            "max_total_draft_tokens": 8,
        },
    ),
    "eagle chain": (
        "eagle",
        {"max_draft_len": 3, "num_eagle_layers": 3, "eagle_choices": CHAIN},
    ),
    "eagle tree": ("eagle", {"max_draft_len": 8, "num_eagle_layers": 3, "eagle_choices": TREE}),
    "eagle dynamic tree": (
        "eagle",
        {
            "max_draft_len": 8,
            "num_eagle_layers": 3,
            "eagle_use_dynamic_tree": True,
            "eagle_dynamic_tree_max_top_k": 3,
        },
    ),
    "medusa chain": ("medusa", {"max_draft_len": 3, "medusa_choices": CHAIN}),
    "medusa tree": ("medusa", {"max_draft_len": 8, "medusa_choices": TREE}),
}
POLICIES = {"fixed": Fixed(3), "adaptive": Adaptive(1, 3)}


@pytest.fixture(scope="module", params=DRAFTERS.values(), ids=DRAFTERS.keys())
def runtime(request, tmp_path_factory):
    drafter, options = request.param
    return tiny_head_runtime(tmp_path_factory, drafter, **options)


def texts(loop, size):
    requests = [Request(prompt, 64) for prompt in repeated_phrases()[:PROMPTS]]
    groups = [requests[start : start + size] for start in range(0, len(requests), size)]
    return [output for group in groups for output in loop.generate(group)]


@pytest.fixture(scope="module")
def plain(runtime):
    return [output.tokens for output in texts(runtime.loop(draft_len=0), 1)]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_greedy_text_equals_plain_text(runtime, plain, policy, size):
    loop = SpeculativeLoop(runtime.target, runtime.drafter(), policy)
    outputs = texts(loop, size)
    assert [o.tokens for o in outputs] == plain
    assert sum(o.stats.accepted_tokens for o in outputs) > 5 * PROMPTS / 6


@pytest.mark.parametrize("size", [1, 4])
def test_stopping_where_the_head_is_unsure_changes_the_pace_only(runtime, plain, size):
    loop = SpeculativeLoop(runtime.target, runtime.drafter(), Confidence(3, 0.5))
    outputs = texts(loop, size)
    assert [o.tokens for o in outputs] == plain
    lengths = {length for o in outputs for length in o.stats.drafted_per_step}
    assert len(lengths) > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_under_a_grammar_every_text_is_valid_and_greedy_text_is_plain_text(runtime, temperature):
    grammar = runtime.grammar(Guide("regex", "([!-~]{4}[#-Z]){2,}"))
    requests = [
        Request(prompt, 24, SamplingParams(temperature, seed=seed), grammar=grammar)
        for seed, prompt in enumerate(repeated_phrases()[:4])
    ]
    outputs = SpeculativeLoop(runtime.target, runtime.drafter(), Fixed(3)).generate(requests)
    for output in outputs:
        text = runtime.tokenizer.decode(output.tokens)
        # Cut at its limit, or ended between two groups of five.
        end = "" if output.finish_reason == "stop" else "[!-~]{0,4}"
        assert re.fullmatch(f"([!-~]{{4}}[#-Z])*{end}", text)
    if runtime.recipe.speculation.drafter != "medusa":  # whose drafts know of no grammar
        assert sum(output.stats.draft_tokens for output in outputs) > 0
    if temperature == 0:
        assert outputs_of(runtime.loop(draft_len=0), requests) == [o.tokens for o in outputs]


def outputs_of(loop, requests):
    return [output.tokens for output in loop.generate(requests)]
