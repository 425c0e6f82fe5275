"""A run's disturbance, on steps whose times are written down."""

import pytest

from bench.disturbance import disturbances


def request(round, steps, drafted=None, *, k=2, domain="edit", batch=1, start=1000):
    """Steps of so many nanoseconds after the prefill."""
    chunks = [start]
    for ns in steps:
        chunks.append(chunks[-1] + ns)
    return {
        "round": round,
        "k": k,
        "domain": domain,
        "batch_size": batch,
        "drafted_per_step": drafted or [k] * len(steps),
        "chunk_ns": chunks,
    }


def test_a_run_is_held_against_the_quickest_of_its_kind():
    quiet = [request(f"r{i}", [30, 20, 20, 20]) for i in range(10)]
    slow = request("slow", [45, 40, 20, 20])
    # 30 the first step, whose number of tokens is new, and 20 each that follows: 125 for 90.
    found = disturbances([*quiet, slow])
    assert found["r0", 2] == 1.0
    assert found["slow", 2] == pytest.approx(125 / 90)


def test_other_numbers_of_tokens_and_other_batches_are_other_kinds():
    one = [request(f"r{i}", [30, 20, 20]) for i in range(9)]
    drafts = [request(f"d{i}", [50, 60, 60], [8, 8, 8], k=8) for i in range(9)]
    pairs = [request(f"b{i}", [70, 80, 80], batch=2) for i in range(9) for _ in range(2)]
    assert set(disturbances([*one, *drafts, *pairs]).values()) == {1.0}


def test_texts_of_another_length_are_compared_only_where_their_own_are_too_few():
    short = [request(f"s{i}", [30, 20, 20]) for i in range(9)]
    long = [request(f"l{i}", [36, 24, 24], domain="code") for i in range(9)]
    assert set(disturbances([*short, *long]).values()) == {1.0}
    found = disturbances([*short, long[0]])
    assert found["l0", 2] == pytest.approx(84 / 70)


def test_of_steps_that_are_too_rare_nothing_is_known():
    assert disturbances([request(f"r{i}", [30]) for i in range(7)]) == {}


def test_a_step_counts_while_every_request_of_the_group_is_recorded():
    whole = [request(f"r{i}", [30, 20, 20 + 50 * i], batch=2) for i in range(9)]
    ended = [{**one, "chunk_ns": one["chunk_ns"][:3], "drafted_per_step": [2, 2]} for one in whole]
    assert set(disturbances([*whole, *ended]).values()) == {1.0}
