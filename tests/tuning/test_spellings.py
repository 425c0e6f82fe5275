"""The schedule in each server's words: what a key means is told by the release."""

import pytest

from tests.tuning.test_results import recipe
from toolkit.tuning.spellings import document, spellings

STEPS = [(1, 4), (4, 2), (8, 0)]


def settings(version, steps, server=0):
    found = spellings(recipe(tensorrt_llm=version), steps)[server]
    return found.settings, found.note


@pytest.mark.parametrize(
    ("version", "schedule", "word"),
    [
        # From batch 1 on four, from 4 on two, from 8 on none.
        ("1.2.1", {1: 4, 4: 2, 8: 0}, "at least"),
        ("1.3.0rc1", {1: 4, 4: 2, 8: 0}, "at least"),
        # Up to batch 3 four, up to 7 two, nothing above.
        ("1.3.0rc24", {3: 4, 7: 2}, "at most"),
        ("1.4.0rc4", {3: 4, 7: 2}, "at most"),
    ],
)
def test_the_same_schedule_has_other_keys_in_other_releases(version, schedule, word):
    found, note = settings(version, STEPS)
    assert found == {"max_draft_len": 4, "draft_len_schedule": schedule}
    assert f"reads a key as 'batch {word} this'" in note


def test_a_release_without_schedules_gets_one_length_and_a_limit():
    found, note = settings("1.2.0rc2", STEPS)
    assert found == {"max_draft_len": 4, "max_concurrency": 7}
    assert "one length for every batch size" in note
    found, note = settings("1.0.0", STEPS)
    assert found == {"max_draft_len": 4}
    assert "keep fewer than 8 requests in flight" in note


def test_one_length_for_all_is_a_fixed_flag():
    assert settings("1.2.1", [(2, 3)]) == ({"max_draft_len": 3}, "")


def test_a_schedule_that_begins_with_off_cannot_be_said_and_that_is_said():
    found, note = settings("1.2.1", [(1, 0), (2, 4)])
    assert found == {"max_draft_len": 4}
    assert note == "wants the longest draft at batch 1, so the schedule is left out"


def test_vllm_has_ranges_without_gaps_and_engines_leave_it_to_the_client():
    found, _ = settings("1.2.1", STEPS, server=2)
    assert found == {
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 3, 4], [4, 7, 2], [8, 8, 0]],
    }
    found, note = settings("1.2.1", STEPS, server=1)
    assert found == {"max_draft_len": 4}
    assert note.endswith("num_draft_tokens: 0 with every request while 8 or more run")


def test_nothing_is_said_where_nothing_pays_or_is_known():
    assert spellings(recipe(), [(1, 0)]) == []
    assert spellings(recipe(), None) == []


def test_json_has_pairs_for_keys_that_are_numbers():
    found = document(spellings(recipe(tensorrt_llm="1.2.1"), STEPS))
    assert found[0]["settings"]["draft_len_schedule"] == [[1, 4], [4, 2], [8, 0]]


def test_an_engine_is_told_its_tree():
    tree = [[0], [1], [0, 0], [0, 0, 0]]
    speculation = {"drafter": "medusa", "heads": {"checkpoint": "o/h"}, "medusa_choices": tree}
    found = spellings(recipe(backend="tensorrt", speculation=speculation), [(1, 2)])[1]
    assert found.settings == {"max_draft_len": 3, "medusa_choices": tree[:3]}
