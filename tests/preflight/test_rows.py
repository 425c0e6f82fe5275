"""Every check on fixtures that it passes and on broken ones that it refuses, within 2 s each."""

from __future__ import annotations

import time

import pytest

from tests.preflight.lab import Lab
from tests.preflight.rows import BROKEN, GOOD
from toolkit.preflight import CHECKS

SECONDS = 2.0


def run(spectool, lab: Lab):
    """`spectool check` on the lab; fails when it takes longer than a person waits."""
    path = lab.path()
    started = time.process_time()
    ran = spectool("check", path, *lab.arguments)
    assert time.process_time() - started < SECONDS
    return ran


@pytest.mark.parametrize("name", GOOD)
def test_a_good_fixture_passes(spectool, lab, name):
    ran = run(spectool, GOOD[name](lab))
    assert ran.err == ""
    assert ran.code == 0
    assert ran.out.endswith("no problems found\n")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_fixture_is_refused_with_what_was_found(spectool, lab, name):
    change, said = BROKEN[name]
    ran = run(spectool, change(lab))
    assert said in ran.err
    assert ran.code == 2
    assert "Traceback" not in ran.err


def test_every_check_has_both():
    for check in CHECKS:
        assert any(check in name.split() for name in GOOD), check
        assert any(check in name.split() for name in BROKEN), check
