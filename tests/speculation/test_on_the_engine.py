"""The loop on a real engine in float32: greedy text is the same token by token."""

import pytest

from tests.engine_fixtures import tiny_runtime
from tests.head_fixtures import repeated_phrases
from toolkit.speculation.draft_length import Adaptive, Fixed
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop

CASES = {
    "draft_target": ("draft_target", Fixed(4)),
    "draft_target adaptive": ("draft_target", Adaptive(1, 8)),
    "ngram": ("ngram", Fixed(6)),
    "ngram adaptive": ("ngram", Adaptive(1, 8)),
}


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory):
    return {
        name: tiny_runtime(tmp_path_factory, drafter=name, noise=0.02)
        for name in ("draft_target", "ngram")
    }


@pytest.fixture(scope="module")
def prompts():
    return repeated_phrases()


@pytest.fixture(scope="module")
def plain(runtimes, prompts):
    return batches(runtimes["ngram"].loop(draft_len=0), prompts, 1)


def batches(loop, prompts, size):
    requests = [Request(prompt, 64) for prompt in prompts]
    groups = [requests[start : start + size] for start in range(0, len(requests), size)]
    return [output for group in groups for output in loop.generate(group)]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(("drafter", "policy"), CASES.values(), ids=CASES.keys())
def test_greedy_text_equals_plain_text(runtimes, prompts, plain, drafter, policy, size):
    runtime = runtimes[drafter]
    loop = SpeculativeLoop(runtime.target, runtime.drafter(), policy)
    outputs = batches(loop, prompts, size)
    assert [o.tokens for o in outputs] == [o.tokens for o in plain]
    assert sum(o.stats.accepted_tokens for o in outputs) > 50


def test_a_seeded_text_is_the_same_alone_and_in_a_batch(runtimes, prompts):
    runtime = runtimes["draft_target"]
    requests = [
        Request(prompt, 32, SamplingParams(0.8, top_k=40, top_p=0.95, seed=seed))
        for seed, prompt in enumerate(prompts[:8])
    ]
    together = runtime.loop().generate(requests)
    alone = [runtime.loop().generate([request])[0] for request in requests]
    assert [o.tokens for o in together] == [o.tokens for o in alone]
    assert sum(o.stats.accepted_tokens for o in alone) > 0


def test_every_kv_block_comes_back(runtimes, prompts):
    runtime = runtimes["draft_target"]
    models = [runtime.models[role] for role in ("target", "draft")]
    before = [model.free_blocks for model in models]
    loop = runtime.loop()
    ids = [loop.submit(Request(prompt, 64)) for prompt in prompts[:12]]
    for _ in range(5):
        loop.step()
    assert all(model.free_blocks < free for model, free in zip(models, before, strict=True))
    for id in ids[:6]:
        loop.cancel(id)
    loop.close()
    assert [model.free_blocks for model in models] == before
