"""`verify` flags every planted bug and passes the correct engine; bench/verify.py repeats that."""

from dataclasses import replace

import pytest

from tests.measure.planted_bugs import BUGS, CORRECT, SmallEngine, plan, verified

SAMPLES = 96
BY_GREEDY_TEXT = [
    "accept rule off by one",
    "KV not rolled back",
    "bonus token from the wrong row",
    "d2t ignored",
]
BY_SAMPLES = [name for name in BUGS if name not in BY_GREEDY_TEXT]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return SmallEngine(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("name", BY_GREEDY_TEXT)
def test_greedy_texts_betray(name, engine):
    found = verified(engine, BUGS[name], replace(plan(SAMPLES), sampled=()))
    [greedy] = found.checks
    assert not found.passed
    assert not greedy.control  # plain decoding was not blamed
    assert ("worthless" in found.conclusion()) == (name == "d2t ignored")


@pytest.mark.parametrize("name", BY_SAMPLES)
def test_samples_betray_what_greedy_texts_cannot(name, engine):
    found = verified(engine, BUGS[name], plan(SAMPLES))
    greedy, sampled = found.checks
    assert greedy.passed
    assert not sampled.control.differ
    assert sampled.compared.differ
    assert "speculation changes the distribution at temperature 0.4" in found.conclusion()


@pytest.mark.parametrize("name", CORRECT)
def test_the_correct_engine_passes(name, engine):
    found = verified(engine, CORRECT[name], plan(SAMPLES))
    assert found.passed, found.conclusion()
    assert found.conclusion() == "lossless: greedy, sampled passed (false-alarm rate 0.001)"
