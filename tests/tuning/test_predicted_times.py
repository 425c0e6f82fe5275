"""Predicted times against a loop on models whose every pass takes a time that is written down.

The clock stands still but for the models, so what is left is the model of a step alone: batches in
which some draft and some do not, requests that end at different times, changes of shape.
"""

import numpy as np
import pytest

from tests.measure.fake_loop import FakeClock
from tests.measure.test_step_times import FakeSlowModel
from tests.measure.test_trace_rounds import models
from toolkit.measure.run import Conditions, EncodedPrompt, measure_group, sampling_of
from toolkit.measure.time_steps import measure_steps
from toolkit.recipe.objective import Objective
from toolkit.recipe.schema import Sampling
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop
from toolkit.speculation.trace import TracedText
from toolkit.tuning.grid import Grid
from toolkit.tuning.predict import Predictor
from toolkit.tuning.summary import summarise

KS, BATCHES, TOKENS = (1, 2, 3, 4, 6, 8), (1, 2, 4, 8), 24


class FakeTimedModel(FakeSlowModel):
    """Tables that answer after 20 ms, 0.5 ms a token, and 3 ms for another shape."""

    def __init__(self, model, clock, base, each, change):
        super().__init__(clock, base, each, change)
        self.table, self.order = model.table, model.order


@pytest.mark.parametrize("name", ["ngram", "draft_target"])
def test_every_point_is_predicted_within_two_percent(name):
    clock = FakeClock()
    target, draft = models(3)
    target = FakeTimedModel(target, clock, 20, 0.5, 3)
    draft = FakeTimedModel(draft, clock, 4, 0.1, 0)
    rng = np.random.default_rng(0)
    prompts = [
        EncodedPrompt(f"d-{i}", "d", tuple(map(int, rng.integers(0, 5, 5 + i)))) for i in range(16)
    ]

    def drafter():
        return NGramDrafter(1, 3) if name == "ngram" else DraftTargetDrafter(draft)

    traces = {}
    for prompt in prompts:
        loop = SpeculativeLoop(target, None, Fixed(0))
        [plain] = loop.generate([Request(prompt.tokens, TOKENS + 8)])
        text = TracedText(prompt.tokens, tuple(plain.tokens), sampling_of(prompt, Sampling()))
        traces["d", prompt.id] = drafter().trace(text, 8)
    times = measure_steps(
        target, drafter, text=[1, 2, 3, 4, 0], batches=BATCHES, longest=8, contexts=(8, 30),
        sampling=SamplingParams(), clock=clock,
    )  # fmt: skip
    plan = Grid(KS, BATCHES, {"d": prompts})
    objective = Objective()
    predictor = Predictor(traces, times, max_tokens=TOKENS, objective=objective, seed=0)
    predicted = predictor.cells(plan.rounds(), {k: Fixed(k) for k in (0, *KS)})

    loop = SpeculativeLoop(target, drafter(), Fixed(8), max_prefill_tokens=1000)
    conditions = Conditions(max_tokens=TOKENS, sampling=Sampling(), stop_tokens=frozenset())
    rounds = {
        round.key: [
            measure_group(
                loop, round.prompts, k=k, round=round.key, conditions=conditions, clock=clock
            )
            for k in (0, *KS)
        ]
        for round in plan.rounds()
    }
    measured = summarise(rounds, ks=KS, batches=BATCHES, domains=("d",), objective=objective)
    assert len(measured) == len(predicted) == 4 * 7
    for guess, found in zip(predicted, measured, strict=True):
        assert (guess.batch_size, guess.k) == (found.batch_size, found.k)
        assert guess.acceptance_length == pytest.approx(found.acceptance_length)
        assert guess.tpot_p50_ns == pytest.approx(found.tpot_p50_ns, rel=0.02)
        assert guess.tpot_p99_ns == pytest.approx(found.tpot_p99_ns, rel=0.03)
