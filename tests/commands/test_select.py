"""`spectool select` from the command line, on tiny real models."""

import json

import pytest

from tests.commands.test_tune import TEXTS, write_prompts
from tests.engine_fixtures import tiny_recipe, write_tiny_model
from toolkit.cli import main
from toolkit.recipe.load import dump_recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("select")
    write_tiny_model(root / "target")
    write_tiny_model(root / "draft", noise=0.5)
    write_tiny_model(root / "close", noise=0.0)
    write_prompts(root, "demo", TEXTS)
    recipe = tiny_recipe(root)
    changes = {"k": (2,), "batch": (1,), "max_tokens": 8}
    changes["prompts"] = {"demo": str(root / "demo.jsonl")}
    recipe = recipe.model_copy(update={"tune": recipe.tune.model_copy(update=changes)})
    (root / "tiny.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
    return root


def select(place, *more):
    with pytest.raises(SystemExit) as ended:
        main(["select", str(place / "tiny.yaml"), "--store", str(place / "store"), *more])
    return ended.value.code


def test_candidates_are_ranked_and_what_they_cost_is_told(place, capsys):
    drafts = ["--draft", str(place / "close"), "--draft", "target@layers=0", "--draft", "ngram"]
    assert select(place, *drafts, "--json") in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "spectool.select/1"
    by_name = {candidate["name"]: candidate for candidate in found["candidates"]}
    assert set(by_name) == {"the recipe's", str(place / "close"), "target@layers=0", "ngram"}
    gains = [candidate["mean_speedup"] for candidate in found["candidates"]]
    assert gains == sorted(gains, reverse=True)
    # The target itself as its draft is always right; half noise is nearly always wrong.
    [close] = by_name[str(place / "close")]["points"]
    [own] = by_name["the recipe's"]["points"]
    assert close["acceptance_rate"] > 0.95
    assert own["acceptance_rate"] < 0.2
    assert by_name["ngram"]["memory"] == {"weights": 0, "kv_per_token": 0}
    whole, one = (by_name[n]["memory"] for n in (str(place / "close"), "target@layers=0"))
    assert 0 < one["weights"] < whole["weights"]
    assert 0 < one["kv_per_token"] < whole["kv_per_token"]

    assert select(place, *drafts[:2]) in (0, None)
    said = capsys.readouterr().out
    assert said.startswith("batch size 1, predicted; plain decoding: ")
    assert "break-even" in said


def test_bad_candidates_are_one_message(place, capsys):
    assert select(place, "--draft", "nonesuch", "--draft", "target@layers=x") == 2
    said = capsys.readouterr()
    assert "cannot select: 2 problem(s)" in said.err
    assert said.out == ""


def test_a_cluster_is_refused_with_the_reason(place, capsys):
    assert select(place, "--on", "ray") == 2
    assert "one table of one target's step times" in capsys.readouterr().err
