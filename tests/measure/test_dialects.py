"""The worked trace in the words of every tool."""

import pytest

from tests.measure.made_records import WORKED
from toolkit.measure.dialects import DIALECTS, count

EXPECTED = {
    # In each: first the rate, then the length.
    "spectool": (5 / 12, 1 + 5 / 3),
    "aiperf": (5 / 12, 1 + 5 / 3),
    "vllm": (5 / 12, 1 + 5 / 3),
    "llama.cpp": (5 / 12, 1 + 5 / 3),
    "trtllm-bench": (5 / 16, 9 / 4),  # 4 iterations with the prefill, each taken to draft 4
    "vllm-2024": (5 / 12, 5 / 3),
    "sglang": (8 / 15, 1 + 5 / 3),  # 5 accepted + 3 others, of 3 x 5 verified
    "specforge": (None, 9 / 3),
    "modelopt": (9 / 4, 9 / 4),
    "triton": (5 / 12, None),
}


def test_every_dialect_is_checked():
    assert set(EXPECTED) == set(DIALECTS)


@pytest.mark.parametrize("name", DIALECTS)
def test_the_worked_trace(name):
    counts, dialect = count([WORKED]), DIALECTS[name]
    rate, length = EXPECTED[name]
    assert (dialect.rate and dialect.rate(counts)) == pytest.approx(rate)
    assert (dialect.length and dialect.length(counts)) == pytest.approx(length)
