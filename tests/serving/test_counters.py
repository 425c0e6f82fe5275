"""Counters as Prometheus gets them."""

from __future__ import annotations

from collections import Counter

from toolkit.serving.counters import SpeculationCounters


def test_steps_add_up_by_position():
    seen = Counter()
    counters = SpeculationCounters(
        lambda name, labels, amount: seen.update({(name, labels.get("position")): amount})
    )
    counters.add(1, 0, 0)  # prefill
    counters.add(4, 4, 3)
    counters.add(1, 4, 0)
    counters.add(3, 4, 2)
    counters.flush()
    assert seen == {
        ("generation_tokens_total", None): 9,
        ("spec_decode_num_drafts_total", None): 3,
        ("spec_decode_num_draft_tokens_total", None): 12,
        ("spec_decode_num_accepted_tokens_total", None): 5,
        ("spec_decode_num_accepted_tokens_per_pos_total", "0"): 2,
        ("spec_decode_num_accepted_tokens_per_pos_total", "1"): 2,
        ("spec_decode_num_accepted_tokens_per_pos_total", "2"): 1,
    }


def test_nothing_is_counted_twice():
    seen = Counter()
    counters = SpeculationCounters(lambda name, labels, amount: seen.update({name: amount}))
    counters.add(2, 0, 0)
    counters.flush()
    counters.flush()
    assert seen == {"generation_tokens_total": 2}
