"""The journal after Ctrl-C, after kill -9 in the middle of a line, and after somebody's editor."""

import pytest

from tests.tuning.made_runs import round_of
from toolkit.errors import InputError, RunError
from toolkit.tuning.journal import Journal

SETTINGS = {"engines": {"target": "abc"}, "k": [2, 4]}
ROUND = round_of({0: [10.0], 2: [5.0], 4: [4.0]})


def test_rounds_come_back_as_they_were_written(tmp_path):
    journal = Journal(tmp_path / "new", SETTINGS)
    assert journal.load() == {}
    journal.append("one", ROUND)
    journal.append("two", ROUND)
    assert Journal(tmp_path / "new", SETTINGS).load() == {"one": ROUND, "two": ROUND}


def test_a_torn_line_is_dropped_wherever_it_is_torn_and_the_next_one_stands_alone(tmp_path):
    journal = Journal(tmp_path, SETTINGS)
    journal.append("one", ROUND)
    whole = journal.path.read_bytes()
    journal.append("two", ROUND)
    both = journal.path.read_bytes()
    for cut in range(len(whole) + 1, len(both), 97):
        journal.path.write_bytes(both[:cut])
        assert list(journal.load()) == ["one"]
        journal.append("three", ROUND)
        assert list(journal.load()) == ["one", "three"]


def test_a_torn_first_line_is_an_empty_journal(tmp_path):
    journal = Journal(tmp_path, SETTINGS)
    journal.append("one", ROUND)
    journal.path.write_bytes(journal.path.read_bytes()[:10])
    assert journal.load() == {}
    journal.append("two", ROUND)
    assert list(journal.load()) == ["two"]


def test_other_settings_have_another_journal(tmp_path):
    Journal(tmp_path, SETTINGS).append("one", ROUND)
    assert Journal(tmp_path, {**SETTINGS, "k": [2]}).load() == {}
    assert list(Journal(tmp_path, SETTINGS).load()) == ["one"]


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    journal = Journal(tmp_path, SETTINGS)
    journal.append("one", ROUND)
    journal.append("two", ROUND)
    lines = journal.path.read_text().splitlines()
    lines[1] = lines[1][: len(lines[1]) // 2]
    journal.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r":2: not a line of a tuning journal.*--fresh"):
        journal.load()


@pytest.mark.parametrize("head", ["[]", "{}", "x", '{"digest": "other"}'])
def test_a_file_that_is_no_journal_is_refused(tmp_path, head):
    journal = Journal(tmp_path, SETTINGS)
    journal.path.write_text(head + "\n")
    with pytest.raises(InputError, match=":1: not a line"):
        journal.load()


def test_clear_starts_over(tmp_path):
    journal = Journal(tmp_path, SETTINGS)
    journal.clear()
    journal.append("one", ROUND)
    journal.clear()
    assert journal.load() == {}


def test_a_full_disk_is_a_sentence(tmp_path):
    journal = Journal(tmp_path, SETTINGS)
    journal.path.symlink_to("/dev/full")
    with pytest.raises(RunError, match="No space left on device; the rounds before this one"):
        journal.append("one", ROUND)
