"""Predicted times against a loop on models whose every pass takes a time that is written down.

The clock stands still but for the models, so what is left is the model of a step alone: batches in
which some draft and some do not, requests that end at different times, changes of shape.
"""

import numpy as np
import pytest

from tests.measure.fake_loop import FakeClock
from tests.measure.test_step_times import FakeSlowModel, loops
from tests.measure.test_trace_rounds import models
from toolkit.measure.run import Conditions, EncodedPrompt, sampling_of
from toolkit.measure.time_steps import measure_steps
from toolkit.recipe.objective import Objective
from toolkit.recipe.schema import Sampling
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop
from toolkit.speculation.trace import TracedText
from toolkit.tuning.choose import choose, overall
from toolkit.tuning.confirm import confirm_grid
from toolkit.tuning.grid import Grid
from toolkit.tuning.journal import Journal
from toolkit.tuning.predict import Predictor
from toolkit.tuning.session import measure
from toolkit.tuning.summary import summarise

BATCHES, TOKENS = (1, 2, 4, 8), 24
CONDITIONS = Conditions(max_tokens=TOKENS, sampling=Sampling(), stop_tokens=frozenset())


class FakeTimedModel(FakeSlowModel):
    """Tables that answer after 20 ms, 0.5 ms a token, and 3 ms for another shape."""

    def __init__(self, model, clock, base, each, change):
        super().__init__(clock, base, each, change)
        self.table, self.order = model.table, model.order


class Bench:
    """A target and a drafter on one clock, what the trace says of them, and the grid."""

    def __init__(self, name, plan):
        self.clock, self.plan, self.name = FakeClock(), plan, name
        target, draft = models(3)
        self.target = FakeTimedModel(target, self.clock, 20, 0.5, 3)
        self.draft = FakeTimedModel(draft, self.clock, 4, 0.1, 0)
        self.traces, self.generated = {}, 0
        for domain, prompts in plan.domains.items():
            for prompt in prompts:
                text = self.answer(prompt)
                self.traces[domain, prompt.id] = self.drafter().trace(text, 8)
        self.times = measure_steps(
            loops(self.target, self.drafter, self.clock), self.target.max_seq_len,
            text=[1, 2, 3, 4, 0], batches=BATCHES, longest=8, contexts=(8, 30),
            sampling=SamplingParams(),
        )  # fmt: skip
        predictor = Predictor(
            self.traces, self.times, max_tokens=TOKENS, objective=Objective(), seed=0
        )
        self.predicted = predictor.cells(plan.rounds(), {k: Fixed(k) for k in (0, *plan.ks)})

    def answer(self, prompt):
        [plain] = SpeculativeLoop(self.target, None, Fixed(0)).generate(
            [Request(prompt.tokens, TOKENS + 8)]
        )
        self.generated += len(plain.tokens)
        return TracedText(prompt.tokens, tuple(plain.tokens), sampling_of(prompt, Sampling()))

    def drafter(self):
        return NGramDrafter(1, 3) if self.name == "ngram" else DraftTargetDrafter(self.draft)

    def measured(self, plan, directory):
        """Cells of a plan, and the tokens that it took."""
        loop = SpeculativeLoop(self.target, self.drafter(), Fixed(8), max_prefill_tokens=1000)
        outcome = measure(
            loop, plan, CONDITIONS, Journal(directory, {"plan": repr(type(plan))}),
            warm_up_prompt=EncodedPrompt("warm-up", "warm-up", (1, 2)), clock=self.clock,
        )  # fmt: skip
        self.rounds = outcome.rounds
        cells = summarise(
            outcome.rounds, ks=plan.ks, batches=plan.batches, domains=list(plan.domains),
            objective=Objective(),
        )  # fmt: skip
        runs = [run for runs in outcome.rounds.values() for run in runs]
        return cells, sum(run.emitted_tokens for run in runs)


def prompts_of(domain, count, rng):
    return [
        EncodedPrompt(f"{domain}-{i}", domain, tuple(map(int, rng.integers(0, 5, 5 + i % 16))))
        for i in range(count)
    ]


@pytest.mark.parametrize("name", ["ngram", "draft_target"])
def test_every_point_is_predicted_within_two_percent(name, tmp_path):
    ks = (1, 2, 3, 4, 6, 8)
    plan = Grid(ks, BATCHES, {"d": prompts_of("d", 16, np.random.default_rng(0))})
    bench = Bench(name, plan)
    measured, _ = bench.measured(plan, tmp_path)
    assert len(measured) == len(bench.predicted) == 4 * 7
    for guess, found in zip(bench.predicted, measured, strict=True):
        assert (guess.batch_size, guess.k) == (found.batch_size, found.k)
        assert guess.acceptance_length == pytest.approx(found.acceptance_length)
        assert guess.tpot_p50_ns == pytest.approx(found.tpot_p50_ns, rel=0.02)
        assert guess.tpot_p99_ns == pytest.approx(found.tpot_p99_ns, rel=0.03)


def test_choices_are_the_grids_at_an_eighth_of_its_tokens(tmp_path):
    """k 1..8 at batch 1, 2, 4, 8, as `tune` goes about it in both modes."""
    rng = np.random.default_rng(1)
    plan = Grid(tuple(range(1, 9)), BATCHES, {d: prompts_of(d, 32, rng) for d in ("a", "b")})
    bench = Bench("ngram", plan)
    expected = choose(bench.predicted)
    confirm = confirm_grid(plan, bench.predicted, expected, Objective())
    few, confirmed = bench.measured(confirm, tmp_path)
    everything, exhaustive = bench.measured(plan, tmp_path)
    spent = bench.generated + bench.times.emitted_tokens + confirmed
    assert exhaustive >= 8 * spent
    wanted = {(c.batch_size, c.domain): c.hope.k for c in expected}
    tpots = {(c.batch_size, c.k): c.tpot_p50_ns for c in everything if c.pooled}
    for choice in overall(choose(few, expected=wanted)):
        best = min(ns for (batch, _), ns in tpots.items() if batch == choice.batch_size)
        assert tpots[choice.batch_size, choice.k] <= 1.03 * best
