"""What `verify` asks, and what it refuses to ask."""

import numpy as np
import pytest

from toolkit.errors import InputError
from toolkit.measure.prompts import Prompt, PromptSet
from toolkit.measure.verify_plan import Room, Wishes, make_plan, parse_checks
from toolkit.recipe.schema import Sampling

VOCAB = 1000


def wishes(**given):
    values = {
        "checks": ["greedy", "sampled", "json", "choice"],
        "prompts": 10,
        "max_tokens": 8,
        "samples": 5,
        "sample_prompts": 3,
        "sample_tokens": 4,
        "temperature": None,
        "top_k": None,
        "top_p": None,
        "seed": 7,
        "alpha": 0.001,
    }
    return Wishes(**(values | given))


def words(domain, prompt):
    """A token a word, frequent ones first."""
    return tuple(len(word) for word in prompt.text.split())


def noise(domain, prompt):
    return tuple(np.random.default_rng(len(prompt.text)).integers(0, VOCAB, 64).tolist())


SETS = [
    PromptSet("a", tuple(Prompt(f"a{n}", "word " * n) for n in (30, 5, 40))),
    PromptSet("b", tuple(Prompt(f"b{n}", "word " * n) for n in (9, 10))),
]


def plan(asked=None, encode=words, sampling=None, room=None, notes=None):
    return make_plan(
        asked or wishes(),
        SETS,
        encode,
        vocab_size=VOCAB,
        room=room or Room(),
        sampling=sampling or Sampling(),
        note=(notes if notes is not None else []).append,
    )


def test_the_shortest_of_every_domain_in_turn_are_sampled():
    found = plan()
    assert [q.id for q in found.greedy] == ["a30", "a5", "a40", "b9", "b10"]
    assert [q.id for q in found.sampled] == ["a5", "b9", "a30"]
    assert {(q.max_tokens, q.sampling.seed) for q in found.sampled} == {(4, 7)}
    # Three times the greedy texts and five samples of three, twice the tasks.
    assert found.answers == 3 * (5 + 3 * 5) + 2 * (len(found.json) + len(found.choice))


def test_samples_are_drawn_as_the_recipe_says_and_never_greedily():
    assert plan().sampled[0].sampling.temperature == 1.0
    recipe = Sampling(temperature=0.7, top_k=20, top_p=0.9)
    found = plan(sampling=recipe).sampled[0].sampling
    assert (found.temperature, found.top_k, found.top_p) == (0.7, 20, 0.9)
    found = plan(wishes(temperature=1.3, top_k=0), sampling=recipe).sampled[0].sampling
    assert (found.temperature, found.top_k, found.top_p) == (1.3, 0, 0.9)


def test_only_what_was_wished_is_asked():
    found = plan(wishes(checks=["json"]))
    assert (list(found.greedy), list(found.sampled), list(found.choice)) == ([], [], [])
    assert found.json


def test_random_tokens_are_refused_with_the_reason():
    with pytest.raises(InputError, match="random tokens say nothing about acceptance: 2 domain"):
        plan(encode=noise)


def test_own_prompts_that_do_not_fit_are_refused_and_bundled_ones_left_out():
    with pytest.raises(InputError, match=r"1 prompt\(s\) are longer .* first a/a40 with 40 tokens"):
        plan(room=Room(39, 100))
    with pytest.raises(InputError, match="first a/a40 with 40 tokens and 8 to come"):
        plan(room=Room(100, 47))
    notes = []
    found = plan(room=Room(100, 50), notes=notes)
    assert list(found.json) == []  # 96 tokens of output do not fit
    assert "json: 12 of 12 prompts are longer than" in notes[0]


def test_checks_by_name():
    assert parse_checks(None) == ["greedy", "sampled", "json", "choice"]
    assert parse_checks("choice, greedy") == ["greedy", "choice"]
    for wrong in ("", "all", "greedy,sample"):
        with pytest.raises(InputError, match="is no check"):
            parse_checks(wrong)
