"""Step times on models whose every pass takes a time that was written down."""

import json

import numpy as np
import pytest

from tests.measure.fake_loop import MS, FakeClock
from tests.speculation.table_model import FakeTableModel, random_table
from toolkit.measure.step_times import StepTime, StepTimes
from toolkit.measure.time_steps import draft_lengths, measure_steps
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.timed import timed_loop


class FakeSlowModel(FakeTableModel):
    """A pass takes `base` ms, `each` ms for every token, and `change` ms after another number."""

    def __init__(self, clock, base, each, change=0):
        super().__init__(random_table(0, 5))
        self.clock, self.base, self.each, self.change = clock, base, each, change
        self.before = None

    def forward(self, steps):
        tokens = sum(len(step.tokens) for step in steps)
        changed = self.change * (tokens != self.before)
        self.clock.pass_ms(self.base + self.each * tokens + changed)
        self.before = tokens
        return super().forward(steps)


class FakeDisturbedModel(FakeSlowModel):
    """That part of the passes, drawn by lot, takes twice as long."""

    def __init__(self, clock, base, each, disturbed):
        super().__init__(clock, base, each)
        self.disturbed, self.rng = disturbed, np.random.default_rng(7)

    def forward(self, steps):
        if self.rng.random() < self.disturbed:
            self.clock.pass_ms(self.base + self.each * sum(len(step.tokens) for step in steps))
        return super().forward(steps)


def loops(target, drafter, clock):
    """For measure_steps, on a made-up clock."""
    return lambda policy, room: timed_loop(
        target, drafter(), policy, max_prefill_tokens=room, clock=clock
    )


def measured(drafter, clock, batches=(1, 2), longest=4, change=0, target=None):
    model = target or FakeSlowModel(clock, 20, 1, change)
    return measure_steps(
        loops(model, lambda: drafter, clock),
        model.max_seq_len,
        text=[1, 2, 3, 4, 0],
        batches=batches,
        longest=longest,
        contexts=(8, 40),
        sampling=SamplingParams(),
    )


@pytest.mark.parametrize(
    ("longest", "lengths"),
    [
        (1, [0, 1]),
        (6, [0, 1, 2, 3, 4, 5, 6]),
        (8, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (20, [0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 20]),
    ],
)
def test_short_lengths_both_sides_of_powers_of_two_and_the_longest_are_measured(longest, lengths):
    assert draft_lengths(longest) == lengths


def test_lookup_that_finds_nothing_is_timed_at_the_length_that_was_asked_for():
    times = measured(NGramDrafter(8, 8), FakeClock())
    # 20 ms and 1 ms for each of batch x (1 + k) tokens; lookup takes no time on this clock.
    for batch in (1, 2):
        for k in (0, 1, 2, 3, 4):
            assert times.at(batch, k, 20) == pytest.approx((20 + batch * (1 + k)) * MS)
    assert times.at(1, 1.5, 20) == pytest.approx(22.5 * MS)
    assert all(point.draft_ns == point.overhead_ns == point.spread == 0 for point in times.points)


def test_drafting_is_told_from_verifying():
    clock = FakeClock()
    times = measured(DraftTargetDrafter(FakeSlowModel(clock, 3, 0)), clock, batches=(2,))
    for point in times.points:
        assert point.draft_ns == 3 * MS * point.drafted  # a pass of the draft for each token
        assert point.verify_ns == (20 + 2 * (1 + point.drafted)) * MS
        assert point.total_ns == point.draft_ns + point.verify_ns
    # Two prompts of 8 and of 40 tokens: 36 and 100 ms, and 6 ms that the draft reads them in.
    assert times.prefill_ns[2] == pytest.approx((42 / 16 + 106 / 80) / 2 * MS, rel=0.3)


def test_disturbances_spoil_no_point():
    clock = FakeClock()
    target = FakeDisturbedModel(clock, 20, 1, 0.3)
    times = measured(NGramDrafter(8, 8), clock, target=target)
    for batch in (1, 2):
        for k in (0, 1, 2, 4):
            assert times.at(batch, k, 20) == pytest.approx((20 + batch * (1 + k)) * MS)


def test_a_machine_that_is_always_busy_raises_all_points_alike():
    clock = FakeClock()
    target = FakeDisturbedModel(clock, 20, 1, 0.7)
    times = measured(NGramDrafter(8, 8), clock, batches=(1,), target=target)
    assert times.at(1, 0, 20) == pytest.approx(2 * 21 * MS)
    assert times.at(1, 4, 20) == pytest.approx(2 * 25 * MS)


def test_measuring_goes_on_until_two_visits_agree():
    quiet = measured(NGramDrafter(8, 8), FakeClock(), batches=(1,), longest=1)
    # Two visits to each context, in each of which a length has two turns of two steps.
    assert [point.samples for point in quiet.points] == [2 * 2 * 2] * 4
    clock = FakeClock()
    busy = FakeDisturbedModel(clock, 20, 1, 0.9)
    times = measured(NGramDrafter(8, 8), clock, batches=(1,), longest=1, target=busy)
    assert {point.samples for point in times.points} != {2 * 2 * 2}
    assert max(point.samples for point in times.points) <= 4 * 2 * 2


def test_few_drafts_stand_while_steps_are_timed():
    clock = FakeClock()
    draft = DraftTargetDrafter(FakeSlowModel(clock, 3, 0))  # the target itself: never refused
    times = measured(draft, clock, batches=(1,))
    rounds, steps = 4, 2 * 3 * 5  # two turns of three steps for 0 to 4 tokens
    kept = rounds * (1 + 2 * 3 * (1 + 2 + 3 + 4 + 5))
    assert rounds * (1 + steps) <= times.emitted_tokens < kept / 1.5


def test_a_mixed_batch_costs_what_its_tokens_cost_and_each_change_is_paid():
    times = measured(NGramDrafter(8, 8), FakeClock(), batches=(2,), change=4)
    assert times.change_ns == {2: 4 * MS}
    drafted = np.array([[4, 0], [4, 0], [0, 4], [1, 1], [0, 0]])
    # 2 + 4 tokens three times, however they are spread; 2 + 2 and 2 after a change each, as is the
    # first after prefill.
    assert times.steps(2, drafted, np.full(5, 20.0)) == pytest.approx(
        np.array([26 + 4, 26, 26, 24 + 4, 22 + 4]) * MS
    )


def test_what_measuring_emitted_is_counted_and_the_table_survives_a_file():
    times = measured(NGramDrafter(8, 8), FakeClock(), batches=(1,), longest=1)
    # A round for each context: prefill's token, and twice three steps of two lengths.
    assert times.emitted_tokens >= 2 * (1 + 2 * 3 * 2)
    assert StepTimes.from_json(json.loads(json.dumps(times.to_json()))) == times


def test_the_share_of_drafting():
    clock = FakeClock()
    times = measured(DraftTargetDrafter(FakeSlowModel(clock, 3, 0)), clock, batches=(2,))
    assert times.draft_share(2, 4, 20) == pytest.approx(12 / (12 + 20 + 10))


def point(context, total, drafted=0):
    return StepTime(1, drafted, context, 3, total, 0.0, 0.0, total, 0.0)


def test_a_longer_context_takes_longer_and_never_less():
    times = StepTimes((point(100, 10.0), point(300, 14.0)), {1: 1.0}, {1: 0.0})
    assert [times.at(1, 0, c) for c in (100, 200, 300, 400)] == [10, 12, 14, 16]
    noise = StepTimes((point(100, 14.0), point(300, 10.0)), {1: 1.0}, {1: 0.0})
    assert [noise.at(1, 0, c) for c in (100, 300)] == [12, 12]


def test_a_short_context_takes_time_however_noisy_the_table_is():
    # Through 10 ms at 8 tokens and 90 at 40 it would be -2.5 at 3; from nothing, 50 at 24 is 6.25.
    table = StepTimes((point(8, 10.0), point(40, 90.0)), {1: 0.0}, {1: 0.0})
    assert table.at(1, 0, 3) == pytest.approx(6.25)
