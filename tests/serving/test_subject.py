"""`verify URL` against servers of /v1/completions; Triton's own are in tests/e2e."""

import json

import pytest

from tests.serving.fake_openai import FakeOpenAi, table
from toolkit.cli import main

PROMPTS = [f"tell me of the {letter}" for letter in "abcdefghij"]


def nearly_tied(gap):
    """After `c`, letters d and e lead by far, `gap` apart; after those, everything differs."""
    logits = table()
    logits[2] = -4.0
    logits[2, 3], logits[2, 4] = 4.0, 4.0 - gap
    logits[:2, 2] = logits[5:, 2] = 20.0  # soon there
    return logits


def swapped(logits):
    other = logits.copy()
    other[2, [3, 4]] = other[2, [4, 3]]
    return other


@pytest.fixture
def verify(tmp_path, capsys):
    prompts = tmp_path / "letters.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": text}) for text in PROMPTS))

    def run(on, off, *options, checks="greedy"):
        arguments = ["verify", on.url, "--prompt-set", str(prompts), "--checks", checks]
        arguments += [] if off is None else ["--plain", off.url]
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--max-tokens", "20", *options])
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


@pytest.mark.parametrize("logprobs", [True, False])
def test_two_servers_that_say_the_same_pass(verify, logprobs):
    with FakeOpenAi(table()) as on, FakeOpenAi(table(), logprobs=logprobs) as off:
        code, out, _ = verify(on, off, "--json")
    found = json.loads(out)["checks"]["greedy"]
    assert code == 0
    assert found["unit"] == ("token" if logprobs else "character")
    assert found["domains"][0]["identical"] == len(PROMPTS)
    assert {body["temperature"] for body in on.bodies} == {0.0}
    # Plain decoding before and after speculation, and a question that finds out what it shows.
    assert (len(on.bodies), len(off.bodies)) == (len(PROMPTS) + 1, 2 * len(PROMPTS) + 1)


@pytest.mark.parametrize("logprobs", [True, False])
@pytest.mark.parametrize(("gap", "code"), [(0.05, 0), (3.0, 1)])
def test_a_divergence_is_judged_by_the_plain_servers_probabilities(verify, gap, code, logprobs):
    logits = nearly_tied(gap)
    with (
        FakeOpenAi(swapped(logits), logprobs=logprobs) as on,
        FakeOpenAi(logits, logprobs=logprobs) as off,
    ):
        ended, out, _ = verify(on, off, "--json")
    found = json.loads(out)["checks"]["greedy"]["divergences"]
    assert ended == code
    assert found
    for divergence in found:
        assert (divergence["plain_token"], divergence["other_token"]) == ("d", "e")
        assert divergence["verdict"] == ("bug" if code else "numerical tie")
        if logprobs:
            assert divergence["gap"] == pytest.approx(gap)
        else:  # the least that it is for certain
            assert 0 <= divergence["gap"] <= gap


def test_another_distribution_at_a_temperature_is_flagged(verify):
    options = ("--samples", "40", "--sample-tokens", "12")
    with FakeOpenAi(table(), warmth=1.4) as on, FakeOpenAi(table()) as off:
        code, out, _ = verify(on, off, *options, checks="sampled")
    assert code == 1
    assert "speculation changes the distribution at temperature 1" in out
    with FakeOpenAi(table()) as on, FakeOpenAi(table()) as off:
        code, out, _ = verify(on, off, *options, checks="sampled")
    assert code == 0
    assert "no difference at temperature 1" in out


def test_a_server_that_ignores_seeds_tests_nothing(verify):
    with (
        FakeOpenAi(table(), ignores_seed=True) as on,
        FakeOpenAi(table(), ignores_seed=True) as off,
    ):
        code, out, _ = verify(on, off, "--samples", "4", checks="sampled")
    assert code == 1
    assert "is the seed or the temperature ignored?" in out


def test_json_and_choices_are_asked_of_a_server_too(verify):
    with FakeOpenAi(table()) as on, FakeOpenAi(table()) as off:
        code, out, _ = verify(on, off, "--json", checks="json,choice")
    assert code == 0
    assert json.loads(out)["checks"]["choice"]["prompts"] == 48


def test_what_cannot_be_asked_is_exit_code_2(verify):
    with FakeOpenAi(table()) as on:
        code, _, err = verify(on, None)
        assert (code, "name it with --plain URL" in err) == (2, True)
        code, _, err = verify(on, on, "--k", "3")
        assert (code, "it drafts" in err or "drafts what it was started with" in err) == (2, True)
        code, _, err = verify(on, on, "--model", "other")
        assert (code, "served: toy" in err) == (2, True)
        code, _, err = verify(on, on, "--set", "name=x")
        assert (code, "--set: only for a recipe" in err) == (2, True)


def test_nobody_there_is_exit_code_1(verify):
    with FakeOpenAi(table()) as on:
        pass
    code, _, err = verify(on, None)
    assert code == 1
    assert "no answer" in err
