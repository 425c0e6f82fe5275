"""What is refused before anything is built or measured."""

import pytest

from tests.measure.fake_loop import FakeTokenizer
from toolkit.errors import InputError
from toolkit.measure.prompts import Prompt, PromptSet
from toolkit.recipe.schema import Recipe
from toolkit.tuning.setup import check, conditions, for_every_k, make_grid, with_options


def recipe(**changes):
    return Recipe.model_validate(
        {
            "name": "r",
            "target": {"checkpoint": "org/name"},
            "speculation": {"drafter": "ngram", "max_draft_len": 3},
            **changes,
        }
    )


def prompts(*texts, domain="edit"):
    return PromptSet(domain, tuple(Prompt(f"{domain}-{i}", t) for i, t in enumerate(texts)))


def test_options_go_into_the_tune_section_and_the_rest_stays():
    found = with_options(
        recipe(tune={"max_tokens": 32}),
        {"k": "2..4", "batch": "1,8", "max_tokens": None, "sampling.temperature": 0.5},
    ).tune
    assert (found.k, found.batch, found.max_tokens) == ((2, 3, 4), (1, 8), 32)
    assert found.sampling.temperature == 0.5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"k": "8..2"}, "--k 8..2: range '8..2' runs backwards; write 2..8"),
        ({"k": "0"}, "--k 0: draft lengths start at 1; plain decoding is always measured"),
        ({"k": "0..4"}, "--k 0..4: draft lengths start at 1"),
        ({"k": "-3"}, "--k -3: draft lengths start at 1"),
        ({"k": "two"}, "--k two: 'two' is not a number or a range like 2..8"),
        ({"k": ""}, "--k : '' is not a number or a range"),
        ({"batch": "1,0"}, "--batch 1,0: a batch has at least one request"),
        ({"max_tokens": 1}, "--max-tokens 1: TPOT needs two tokens"),
        ({"prompts_per_domain": 0}, "--prompts-per-domain 0: "),
        ({"sampling.temperature": -1.0}, "--temperature -1.0: 0 is greedy"),
        ({"sampling.top_p": 0.0}, "--top-p 0.0: "),
    ],
)
def test_an_impossible_option_is_answered_with_a_sentence(options, sentence):
    with pytest.raises(InputError) as caught:
        with_options(recipe(), options)
    assert str(caught.value).startswith(sentence)
    assert caught.value.exit_code == 2


def test_all_impossible_options_are_answered_at_once():
    with pytest.raises(InputError) as caught:
        with_options(recipe(), {"k": "8..2", "batch": "x", "max_tokens": 0})
    assert len(str(caught.value).splitlines()) == 3


def test_what_cannot_be_measured_is_refused_at_once():
    impossible = with_options(recipe(engine={"max_batch_size": 2}), {"k": "1,600", "batch": "1,4"})
    with pytest.raises(InputError) as caught:
        check(impossible, [prompts("a", "b", "c")])
    text = str(caught.value)
    assert "3 problem(s)" in text
    assert "batch size 4 is above engine.max_batch_size (2); build with --set" in text
    assert "k = 600 is above the longest possible draft (512)" in text
    assert "domain 'edit' has 3 prompt(s), too few for a batch of 4" in text


def test_without_a_drafter_there_is_nothing_to_tune():
    with pytest.raises(InputError, match="drafter is none: there is no draft length to tune"):
        check(recipe(speculation={"drafter": "none"}), [prompts("a", "b", "c", "d")])


def test_k_may_go_beyond_what_the_recipe_deploys():
    found = with_options(recipe(), {"k": "2..8"})
    check(found, [prompts("a", "b", "c", "d")])
    assert for_every_k(found).speculation.max_draft_len == 8
    assert for_every_k(found).speculation.drafter == "ngram"


def test_random_tokens_are_refused_with_the_reason():
    roomy = recipe(engine={"max_input_len": 90, "max_seq_len": 256}, tune={"batch": 1})
    noise = prompts("".join(map(chr, range(32, 32 + 80 * 400, 400))))  # even over the vocabulary
    with pytest.raises(InputError, match="random tokens say nothing about acceptance"):
        make_grid(roomy, [noise], FakeTokenizer(), vocab_size=32_000)
    text = prompts("what people write uses few of the tokens that there are, again and again")
    make_grid(roomy, [text], FakeTokenizer(), vocab_size=32_000)


def test_prompts_that_do_not_fit_are_all_named():
    short = recipe(
        engine={"max_input_len": 20, "max_seq_len": 30},
        tune={"k": 4, "max_tokens": 10, "batch": 1},
    )
    # 30 - 10 output tokens - 4 draft tokens - 1 bonus token = 15; the chat frame is 2 of them.
    fits = [prompts("x" * 13), prompts("y", domain="code")]
    grid = make_grid(short, fits, FakeTokenizer())
    assert len(grid.domains["edit"][0].tokens) == 15
    with pytest.raises(InputError) as caught:
        make_grid(short, [prompts("x" * 14, "ok", "z" * 40)], FakeTokenizer())
    text = str(caught.value)
    assert "2 problem(s)" in text
    assert "prompt 'edit-0' has 16 tokens; at most 15 fit" in text
    assert "prompt 'edit-2' has 42 tokens" in text


def test_conditions_come_from_the_tune_section():
    found = conditions(with_options(recipe(), {"max_tokens": 20}), frozenset({7}))
    assert (found.max_tokens, found.stop_tokens) == (20, frozenset({7}))
