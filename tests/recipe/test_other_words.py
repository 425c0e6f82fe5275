"""A key from another tool's guide is answered with the recipe's own."""

import pytest

from toolkit.errors import RecipeError
from toolkit.recipe.explain import keys_at
from toolkit.recipe.load import load_recipe
from toolkit.recipe.other_words import OTHER_WORDS
from toolkit.registry import DRAFTERS


@pytest.mark.parametrize("key", ["speculative_model_dir", "num_draft_tokens", "decoding_type"])
def test_a_renamed_key_says_where_a_recipe_has_it(tmp_path, key):
    path = tmp_path / "r.yaml"
    text = f"name: x\ntarget: {{checkpoint: ./m}}\nspeculation: {{drafter: ngram, {key}: 1}}\n"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(path))
    (problem,) = caught.value.problems
    assert f"speculation.{key}: unknown key; a recipe says it in {OTHER_WORDS[key]}" in problem


def test_every_answer_is_a_key_that_some_recipe_has():
    for said in OTHER_WORDS.values():
        for dotted in said.split(", or "):
            *section, key = dotted.split(".")
            known = {
                name
                for drafter in DRAFTERS
                for name in keys_at(tuple(section), {"speculation": {"drafter": drafter}})
            }
            assert key in known, dotted


def test_no_key_of_a_recipe_is_called_unknown():
    sections = [(), ("target",), ("target", "parallel"), ("engine",), ("tune",), ("serve",)]
    own = {key for section in sections for key in keys_at(section, {})}
    for drafter in DRAFTERS:
        own |= set(keys_at(("speculation",), {"speculation": {"drafter": drafter}}))
    assert own & set(OTHER_WORDS) == set()
