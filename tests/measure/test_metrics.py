"""Every rate against numbers worked out by hand."""

import math

import pytest

from tests.measure.made_records import MS, WORKED, record, run
from toolkit.measure import metrics


def test_the_worked_trace_in_our_names():
    assert metrics.acceptance_rate([WORKED]) == pytest.approx(5 / 12)  # 3 + 0 + 2 of 3 x 4
    assert metrics.acceptance_length([WORKED]) == pytest.approx(1 + 5 / 3)
    assert metrics.tpot_ns(WORKED) == pytest.approx(15 * MS)  # (220 - 100) / (9 - 1)
    assert metrics.icl_ns(WORKED) == [40 * MS, 40 * MS, 40 * MS]
    assert metrics.tokens_per_s_per_user(WORKED) == pytest.approx(9 / 0.220)  # 40.9, with TTFT


def test_acceptance_by_position_joint_and_conditional():
    # accepted 3, 0, 2 of 4: position 1 stood in two of three steps, 2 in two, 3 in one, 4 in none.
    assert metrics.joint_acceptance_by_position([WORKED], 4) == [2 / 3, 2 / 3, 1 / 3, 0]
    # Given all before: 2 of 3, 2 of 2, 1 of 2, 0 of 1.
    assert metrics.conditional_acceptance_by_position([WORKED], 4) == [2 / 3, 1, 1 / 2, 0]


def test_a_position_that_was_not_drafted_is_no_refusal():
    # Drafted 2, 0, 1; accepted 2, 0, 0.
    short = record(drafted_per_step=(2, 0, 1), accepted_per_step=(2, 0, 0), verify_steps=3)
    assert metrics.joint_acceptance_by_position([short], 3) == [1 / 3, 1 / 3, 0]
    conditional = metrics.conditional_acceptance_by_position([short], 3)
    assert conditional[:2] == [1 / 2, 1]  # drafted twice at position 1, once at position 2
    assert math.isnan(conditional[2])  # never drafted


def test_counts_add_up_and_ratios_do_not():
    # 5 of 12 and 0 of 1: together 5 of 13, not the mean of 41.7 % and 0 %.
    other = record(drafted_per_step=(1,), accepted_per_step=(0,), verify_steps=1)
    assert metrics.acceptance_rate([WORKED, other]) == pytest.approx(5 / 13)
    assert metrics.acceptance_length([WORKED, other]) == pytest.approx(1 + 5 / 4)


def test_nothing_to_divide_by_is_undefined():
    single = record(output_tokens=1, e2e_ns=100 * MS)
    assert math.isnan(metrics.tpot_ns(single))
    assert math.isnan(metrics.acceptance_rate([single]))
    assert math.isnan(metrics.acceptance_length([]))
    assert math.isnan(metrics.percentile([math.nan], 50))


def test_percentiles_leave_undefined_values_out():
    assert metrics.percentile([1.0, math.nan, 3.0], 50) == 2.0
    # 99 % of the way from the first of 11 to the last: 9.9.
    assert metrics.percentile([float(i) for i in range(11)], 99) == pytest.approx(9.9)


def test_output_throughput_is_all_tokens_over_all_wall_time():
    first = run(record(), wall_ns=200 * MS, emitted_tokens=30)
    second = run(record(), wall_ns=300 * MS, emitted_tokens=20)
    assert metrics.output_throughput([first, second]) == pytest.approx(50 / 0.5)


@pytest.mark.parametrize(
    ("unique", "bigrams", "expected"),
    [(2, 40, True), (20, 40, False), (39, 40, False), (1, 7, False)],
)
def test_an_output_of_repeated_bigrams_is_a_loop(unique, bigrams, expected):
    assert metrics.loops(record(unique_bigrams=unique, bigrams=bigrams)) is expected
