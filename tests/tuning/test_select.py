"""The order in which drafts are ranked is that of decoding with them.

Models are tables whose passes take times that are written down, on a clock that nothing else moves.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.measure.fake_loop import FakeClock
from tests.measure.test_step_times import loops
from tests.speculation.table_model import FakeTableModel, random_table
from tests.tuning.test_predicted_times import FakeTimedModel
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
from toolkit.tuning.select import Memory, assess, at_batch, break_even, document, ranked
from toolkit.tuning.summary import summarise

KS, BATCHES, TOKENS = (1, 2, 4), (1, 4), 24


class Bench:
    """A target and five drafters: good and dear, good and cheap, middling, bad, and lookup."""

    def __init__(self):
        self.clock = FakeClock()
        table = random_table(3, 5, order=2, spread=1.5)
        self.target = self.timed(table, 20, 0.5, change=2)
        self.drafts = {
            "good, dear": self.timed(self.noisy(table, 0.1), 9, 0.2),
            "good, cheap": self.timed(self.noisy(table, 0.1), 2, 0.1),
            "middling": self.timed(self.noisy(table, 0.9), 2, 0.1),
            "bad": self.timed(self.noisy(table, 5.0), 2, 0.1),
        }

    def timed(self, table, base, each, change=0):
        return FakeTimedModel(FakeTableModel(table), self.clock, base, each, change)

    def noisy(self, table, spread):
        return table + random_table(103, 5, order=2, spread=spread)

    def drafter(self, name):
        return DraftTargetDrafter(self.drafts[name]) if name in self.drafts else NGramDrafter(1, 3)

    @property
    def names(self):
        return [*self.drafts, "ngram"]


@pytest.fixture(scope="module")
def bench():
    return Bench()


@pytest.fixture(scope="module")
def plan():
    rng = np.random.default_rng(0)
    return Grid(
        KS,
        BATCHES,
        {"d": [EncodedPrompt(f"d-{i}", "d", tuple(rng.integers(0, 5, 6).tolist()))
               for i in range(12)]},
    )  # fmt: skip


@pytest.fixture(scope="module")
def assessed(bench, plan):
    texts = {}
    for prompt in plan.domains["d"]:
        [plain] = SpeculativeLoop(bench.target, None, Fixed(0)).generate(
            [Request(prompt.tokens, TOKENS + 4)]
        )
        params = sampling_of(prompt, Sampling())
        texts["d", prompt.id] = TracedText(prompt.tokens, tuple(plain.tokens), params)

    def times(name, **options):
        return measure_steps(
            loops(bench.target, lambda: bench.drafter(name), bench.clock),
            bench.target.max_seq_len, text=[1, 2, 3, 4, 0], batches=BATCHES, longest=4,
            contexts=(8, 8), sampling=SamplingParams(), **options,
        )  # fmt: skip

    table, found = None, []
    for name in bench.names:
        if table is None:
            own = table = times(name)
        else:  # verifying was timed already
            own = table.drafting_as(times(name, lengths=(1, 4), rounds=(1, 1)))
        traces = {key: bench.drafter(name).trace(text, 4) for key, text in texts.items()}
        found.append(
            assess(
                name, name, traces, own, plan, Memory(1, 2), max_tokens=TOKENS,
                objective=Objective(),
            )
        )  # fmt: skip
    return found


def closed_loop(bench, plan, name, batch):
    """TPOT at the best draft length, by decoding."""
    conditions = Conditions(max_tokens=TOKENS, sampling=Sampling(), stop_tokens=frozenset())
    loop = SpeculativeLoop(bench.target, bench.drafter(name), Fixed(4), max_prefill_tokens=1000)
    rounds = {
        round.key: [
            measure_group(
                loop, round.prompts, k=k, round=round.key, conditions=conditions, clock=bench.clock
            )
            for k in (0, *KS)
        ]
        for round in plan.rounds()
        if round.batch_size == batch
    }
    cells = summarise(rounds, ks=KS, batches=(batch,), domains=("d",), objective=Objective())
    return min(cell.tpot_p50_ns for cell in cells if not cell.plain)


@pytest.mark.parametrize("batch", BATCHES)
def test_the_order_is_that_of_the_closed_loop(bench, plan, assessed, batch):
    measured = {name: closed_loop(bench, plan, name, batch) for name in bench.names}
    order = [candidate.name for candidate, _ in at_batch(assessed, batch)]
    assert order == sorted(measured, key=measured.get)
    assert order.index("good, cheap") < order.index("good, dear")
    assert order[-1] == "bad"
    for candidate, point in at_batch(assessed, batch):
        assert point.tpot_ns == pytest.approx(measured[candidate.name], rel=0.03)


def test_a_target_that_was_timed_in_a_slow_minute_does_not_cost_a_place(assessed):
    first, *others = [candidate for candidate, _ in at_batch(assessed, BATCHES[0])]
    slow = tuple(
        replace(point, tpot_ns=point.tpot_ns * 2, plain_tpot_ns=point.plain_tpot_ns * 2)
        for point in first.points
    )
    found = [*others, replace(first, points=slow)]
    order = [candidate.name for candidate, _ in at_batch(found, BATCHES[0])]
    assert order == [first.name, *(other.name for other in others)]


def test_costs_are_those_that_were_written_down(assessed):
    dear = next(a for a in assessed if a.name == "good, dear").points[0]
    # 9.2 ms for a draft token, 20.5 ms for a plain step.
    assert dear.cost_ratio == pytest.approx(9.2 / 20.5, rel=0.02)
    cheap = next(a for a in assessed if a.name == "good, cheap").points[0]
    assert cheap.cost_ratio == pytest.approx(2.1 / 20.5, rel=0.02)
    assert cheap.break_even_acceptance < dear.break_even_acceptance
    assert cheap.ceiling_speedup == pytest.approx(
        (cheap.k + 1) * 20.5 / (20.5 + 0.5 * cheap.k + 2.1 * cheap.k), rel=0.02
    )


def test_all_batch_sizes_together_make_one_ranking(assessed):
    best = ranked(assessed)
    assert best[-1].name == "bad"
    assert [c["name"] for c in document(assessed, {})["candidates"]] == [c.name for c in best]
    assert best[0].gain > 1 > best[-1].gain


@pytest.mark.parametrize(
    ("cost", "k", "acceptance"),
    [
        (1.0, 4, 0.0),
        (1.5, 1, 0.5),  # 1 + a
        (1.75, 2, 0.5),  # 1 + a + a^2
        (5.0, 4, 1.0),
        (5.1, 4, None),
    ],
)
def test_break_even_is_where_a_step_brings_what_it_costs(cost, k, acceptance):
    assert break_even(cost, k) == (None if acceptance is None else pytest.approx(acceptance))
