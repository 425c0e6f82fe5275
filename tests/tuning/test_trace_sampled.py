"""At temperature 1 chance decides; over many texts of a toy vocabulary its part is below 2 %."""

from functools import cache

import numpy as np
import pytest

from tests.speculation.drafters.test_feature_drafter import FakeFeatureHead
from tests.speculation.table_model import FakeTableModel, random_table
from toolkit.measure.trace_rounds import add, expected_rounds
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.eagle3 import Eagle3Drafter
from toolkit.speculation.drafters.medusa import MedusaDrafter
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop
from toolkit.speculation.teacher_forced import true_token_probs
from toolkit.speculation.trace import TracedText

VOCAB, DEPTH, TEXTS, TOKENS = 6, 8, 240, 60
TABLE = random_table(5, VOCAB, order=1, spread=2.0)
CHAIN = tuple((0,) * depth for depth in range(1, DEPTH + 1))


class FakeParallelHeads:
    """Head d knows the distribution of the token d + 2 places on, given the last one read."""

    target_ids = np.arange(VOCAB)

    def __init__(self):
        step = np.exp(TABLE) / np.exp(TABLE).sum(axis=-1, keepdims=True)
        powers = [np.linalg.matrix_power(step, 2 + d) for d in range(DEPTH)]
        self.tables = np.log(np.stack(powers)).astype(np.float32)  # [heads, V, D]

    def logits(self, hidden):
        return self.tables[:, hidden[:, 0].astype(int)].swapaxes(0, 1)


def target():
    return FakeTableModel(TABLE, max_batch_size=64)


def eagle3(model):
    noisy = TABLE + random_table(6, VOCAB, order=1, spread=0.7)
    return Eagle3Drafter(FakeFeatureHead(noisy, max_batch_size=64), model)


def medusa(model):
    return MedusaDrafter(FakeParallelHeads(), model, CHAIN)


DRAFTERS = {"eagle3": eagle3, "medusa": medusa}


def requests(first):
    prompts = [(seed % VOCAB, seed // VOCAB % VOCAB) for seed in range(TEXTS)]
    return [
        Request(prompt, TOKENS, SamplingParams(1.0, seed=first + seed))
        for seed, prompt in enumerate(prompts)
    ]


@cache
def traces(name):
    """Of texts that the target wrote alone."""
    model, found = target(), []
    asked = requests(0)
    for request, plain in zip(
        asked, SpeculativeLoop(model, None, Fixed(0)).generate(asked), strict=True
    ):
        probs = true_token_probs(model, request.prompt, plain.tokens, request.sampling)
        text = TracedText(request.prompt, tuple(plain.tokens), request.sampling, probs)
        found.append(DRAFTERS[name](model).trace(text, DEPTH))
    return found


@pytest.mark.parametrize("k", range(1, DEPTH + 1))
@pytest.mark.parametrize("name", DRAFTERS)
def test_sampled_acceptance_length_is_predicted_within_two_percent(name, k):
    expected = add([expected_rounds(each, Fixed(k), limited=True) for each in traces(name)])
    model = target()
    loop = SpeculativeLoop(model, DRAFTERS[name](model), Fixed(k))
    stats = [output.stats for output in loop.generate(requests(10_000 * k))]
    steps = sum(each.verify_steps for each in stats)
    measured = 1 + sum(each.accepted_tokens for each in stats) / steps
    assert expected.acceptance_length == pytest.approx(measured, rel=0.02)
    assert measured > 1.3
