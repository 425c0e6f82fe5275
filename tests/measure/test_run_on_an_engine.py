"""The real loop and a tiny real engine agree with what the records claim."""

import sys

import pytest

from tests.engine_fixtures import tiny_runtime
from toolkit.measure.prompts import Prompt
from toolkit.measure.run import Conditions, encode_prompt, measure_group
from toolkit.recipe.schema import Sampling
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.loop import SpeculativeLoop


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    return tiny_runtime(tmp_path_factory, drafter="draft_target", noise=0.05)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [0, 1, 4])
def test_tokens_are_prefill_plus_accepted_plus_one_a_step(runtime, k, temperature):
    texts = ["a", "some longer text, for a prompt", "third"]
    group = [encode_prompt(runtime.tokenizer, "d", Prompt(text, text)) for text in texts]
    conditions = Conditions(
        max_tokens=20, sampling=Sampling(temperature=temperature), stop_tokens=frozenset()
    )
    loop = SpeculativeLoop(
        runtime.target, runtime.drafter(), Fixed(4), max_prefill_tokens=sys.maxsize
    )
    run = measure_group(loop, group, k=k, round="r", conditions=conditions)
    assert loop.active == 0
    # One step reads all prompts, so all first tokens come together.
    assert len({record.ttft_ns for record in run.requests}) == 1
    for record in run.requests:
        assert record.output_tokens == 1 + record.verify_steps + record.accepted_tokens
        assert 20 <= record.output_tokens <= 20 + k
        assert record.drafted_per_step == (k,) * record.verify_steps
        assert len(record.chunk_ns) == 1 + record.verify_steps
        assert list(record.chunk_ns) == sorted(record.chunk_ns)
    assert run.emitted_tokens >= sum(record.output_tokens for record in run.requests)
