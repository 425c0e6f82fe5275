"""The worked trace in the words of every tool."""

import pytest

from tests.measure.made_records import MS, WORKED
from toolkit.errors import UnknownNameError
from toolkit.measure.dialects import DIALECTS, Counts, count, dialect
from toolkit.measure.metrics import icl_ns, tpot_ns

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
    assert dialect.describe(counts) == {
        "acceptance_rate": pytest.approx(rate),
        "acceptance_length": pytest.approx(length),
    }


def test_itl_is_a_token_in_aiperf_and_a_verify_step_in_vllm():
    gap = sum(icl_ns(WORKED)) / 3
    found = {name: d.itl(tpot_ns(WORKED), gap) for name, d in DIALECTS.items() if d.itl}
    assert found == {"aiperf": 15 * MS, "vllm": 40 * MS}


def test_plain_decoding_has_no_acceptance_rate():
    plain = Counts(k=0, requests=1, output_tokens=9, verify_steps=8, drafted=0, accepted=0)
    assert DIALECTS["vllm"].describe(plain) == {"acceptance_rate": None, "acceptance_length": 1.0}


def test_an_unknown_dialect_is_refused_with_the_nearest_one():
    with pytest.raises(UnknownNameError, match="did you mean 'sglang'"):
        dialect("sglan")
