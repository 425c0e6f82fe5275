"""`spectool tune --mode trace` for heads that draft a tree, and what has no trace."""

import json

import pytest

from tests.head_fixtures import tiny_head_files
from toolkit.recipe.load import dump_recipe
from toolkit.speculation.trees import Tree

TREE = [[4], [5], [4, 0], [5, 0]]  # hardly ever right
TEXTS = ["red red blue", "one two one two", "a b c a b c", "ha ha ha", "la li la", "xyz"]
SHORT = ("--k", "1,2", "--batch", "1", "--max-tokens", "16", "--out")


def write(place, drafter, **options):
    made = tiny_head_files(place, drafter, **options)
    lines = (json.dumps({"prompt": text}) for text in TEXTS)
    (place / "demo.jsonl").write_text("\n".join(lines))
    changes = {"prompts": {"demo": str(place / "demo.jsonl")}}
    made = made.model_copy(update={"tune": made.tune.model_copy(update=changes)})
    (place / "recipe.yaml").write_text(dump_recipe(made))
    return place / "recipe.yaml"


def test_a_trace_says_which_tree_to_draft(spectool, tmp_path):
    recipe = write(tmp_path, "medusa", max_draft_len=8, medusa_choices=TREE)
    done = spectool("tune", recipe, "--mode", "trace", *SHORT, tmp_path / "out")
    assert done.code == 0, done.err
    assert "trees, at any batch size" in done.out
    whole = json.loads((tmp_path / "out" / "results.json").read_text())["trace"]
    found = whole["trees"]
    assert (found["option"], found["own"]["nodes"]) == ("medusa_choices", 4)
    best = [tree for tree in found["best"] if tree["nodes"] <= 4][-1]
    assert best["expected_acceptance_length"] > found["own"]["acceptance_length"]
    [trial] = [t for t in whole["trials"] if t["challenger"]["name"] == "tree"]
    assert trial["challenger"]["choices"] == best["choices"]
    assert "batch 1: the best tree of " in done.out
    assert best["acceptance_length"] >= found["own"]["acceptance_length"]
    assert f"medusa_choices: {best['choices']}" in done.out
    for tree in found["best"]:
        Tree.model_validate(tree["choices"])
    assert "of other texts" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "more", "why"),
    [
        ({"eagle_choices": TREE, "num_eagle_layers": 2}, ("--temperature", "1"), "by chance"),
        (
            {"eagle_use_dynamic_tree": True, "eagle_dynamic_tree_max_top_k": 2},
            (),
            "a dynamic tree is another one for every draft length",
        ),
    ],
)
def test_what_no_reading_foresees_is_refused_before_anything_is_generated(
    spectool, tmp_path, options, more, why
):
    recipe = write(tmp_path, "eagle", max_draft_len=8, **options)
    refused = spectool("tune", recipe, "--mode", "trace", *more, *SHORT, tmp_path / "out")
    assert refused.code == 2
    assert "drafter 'eagle' has no trace: " in refused.err
    assert why in refused.err
    assert "--mode grid" in refused.err
