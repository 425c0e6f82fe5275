"""The files of a run: complete, loadable, and honest about what is missing."""

import csv
import io
import json
from html.parser import HTMLParser

import pytest

from tests.tuning.made_runs import rounds_of
from tests.tuning.test_grid import grid
from toolkit.errors import InputError
from toolkit.recipe.load import dump_recipe, load_recipe
from toolkit.recipe.schema import Recipe
from toolkit.speculation.draft_length import draft_length_policy
from toolkit.tuning.output import results_directory, write_results
from toolkit.tuning.results import document, evaluate, to_csv, to_json
from toolkit.tuning.session import Outcome
from toolkit.tuning.table import COLUMNS, rows
from toolkit.tuning.tuned_recipe import tuned_recipe, tuned_yaml

GAIN = {0: [10.0], 2: [5.0], 4: [4.0]}
LOSS = {0: [10.0], 2: [20.0], 4: [30.0]}


def recipe(**changes):
    return Recipe.model_validate(
        {
            "name": "r",
            "target": {"checkpoint": "org/name"},
            "speculation": {
                "drafter": "ngram",
                "max_draft_len": 3,
                "max_matching_ngram_size": 2,
                "draft_length": {"policy": "adaptive"},
            },
            "tune": {"k": (2, 4), "batch": (1,)},
            **changes,
        }
    )


def results(times=GAIN, count=4, planned=None, domains=("edit",)):
    rounds = {}
    for domain in domains:
        rounds |= rounds_of(*[times] * count, domain=domain)
    plan = grid(count, batches=(1,), ks=(2, 4), domains=domains)
    outcome = Outcome(rounds, planned or len(rounds), 0, interrupted=False)
    return evaluate(recipe(), plan, outcome, {"k": [2, 4]}, {"spectool": "1"})


def test_the_json_document_has_everything_and_no_nan():
    found = json.loads(to_json(results()), parse_constant=lambda name: pytest.fail(name))
    assert found["schema"] == "spectool.tune/1"
    assert found["draft_length_schedule"] == [[1, 4]]
    assert found["complete"]
    assert found["rounds"] == {"planned": 4, "measured": 4, "resumed": 0}
    assert found["choices"][0]["speedup"] == {"value": 2.5, "low": 2.5, "high": 2.5}
    assert len(found["records"]) == 4 * 3
    assert found["runs"][0]["wall_ns"] > 0
    assert found["records"][0]["e2e_ns"] == 200_000_000
    assert "records" not in document(results(), whole=False)


def test_the_csv_has_a_line_per_request():
    lines = list(csv.DictReader(io.StringIO(to_csv(results()))))
    assert len(lines) == 12
    assert {line["k"] for line in lines} == {"0", "2", "4"}


def test_the_tuned_recipe_loads_and_deploys_what_was_measured(tmp_path):
    path = tmp_path / "tuned.yaml"
    path.write_text(tuned_yaml(recipe(), results()))
    tuned = load_recipe(str(path))
    assert tuned.speculation.max_draft_len == 4
    # Fixed lengths were measured, so a fixed length is what the numbers stand for.
    assert tuned.speculation.draft_length.policy == "fixed"
    assert tuned.speculation.max_matching_ngram_size == 2
    assert tuned.tune == recipe().tune
    assert "k = 4 speeds decoding up by 2.50" in path.read_text()


def test_draft_lengths_that_differ_by_batch_become_a_schedule(tmp_path):
    tuned = tuned_recipe(recipe(), [(1, 4), (2, 0)])
    path = tmp_path / "tuned.yaml"
    path.write_text(dump_recipe(tuned))
    assert load_recipe(str(path)) == tuned
    policy = draft_length_policy(tuned.speculation)
    assert [policy.now(4, active) for active in (1, 2, 7)] == [4, 0, 0]
    assert tuned.speculation.max_draft_len == 4


TREE = [[0], [1], [0, 0], [0, 1], [0, 0, 0]]
HEADS = {"checkpoint": "org/heads"}


@pytest.mark.parametrize(
    ("speculation", "depth", "found"),
    [
        (
            {"drafter": "medusa", "heads": HEADS, "max_draft_len": 63, "medusa_choices": TREE},
            2,
            {"max_draft_len": 4, "medusa_choices": TREE[:4]},
        ),
        (
            {"drafter": "medusa", "heads": HEADS, "max_draft_len": 63, "medusa_choices": TREE},
            5,
            {"max_draft_len": 63, "medusa_choices": TREE},
        ),
        (
            {"drafter": "eagle", "heads": HEADS, "num_eagle_layers": 3, "eagle_choices": TREE},
            1,
            {"max_draft_len": 2, "num_eagle_layers": 1, "eagle_choices": TREE[:2]},
        ),
        (
            {"drafter": "eagle", "heads": HEADS, "eagle_use_dynamic_tree": True,
             "eagle_dynamic_tree_max_top_k": 10},
            2,
            {"max_draft_len": 63, "num_eagle_layers": 2},
        ),
        (
            {"drafter": "eagle3", "heads": HEADS, "max_draft_len": 6, "use_dynamic_tree": True,
             "dynamic_tree_max_top_k": 4, "max_total_draft_tokens": 20},
            2,
            {"max_draft_len": 2, "max_total_draft_tokens": 8},
        ),
        (
            {"drafter": "eagle", "heads": HEADS, "num_eagle_layers": 1, "eagle_choices": [[0]]},
            2,
            {"max_draft_len": 2, "num_eagle_layers": 2, "eagle_choices": [[0], [0, 0]]},
        ),
        ({"drafter": "lookahead"}, 2, {"max_ngram_size": 3, "max_draft_len": 1 + 13 * 2}),
    ],
)  # fmt: skip
def test_how_deep_to_draft_is_told_in_each_drafters_words(tmp_path, speculation, depth, found):
    backend = "pytorch" if speculation["drafter"] == "eagle3" else "tensorrt"
    version = {"tensorrt_llm": "1.3.0rc24"} if backend == "pytorch" else {}
    made = recipe(speculation=speculation, backend=backend, **version)
    path = tmp_path / "tuned.yaml"
    path.write_text(dump_recipe(tuned_recipe(made, [(1, depth)])))
    options = load_recipe(str(path)).speculation.model_dump(mode="json")
    for name, value in found.items():
        assert (options[name]["choices"] if name.endswith("choices") else options[name]) == value


def test_where_nothing_pays_the_tuned_recipe_decodes_plainly(tmp_path):
    path = tmp_path / "tuned.yaml"
    path.write_text(tuned_yaml(recipe(), results(LOSS)))
    assert load_recipe(str(path)).speculation.drafter == "none"
    assert "'ngram' gained nothing that was certain" in path.read_text()


def test_while_nothing_is_decided_the_tuned_recipe_is_the_recipe(tmp_path):
    path = tmp_path / "tuned.yaml"
    path.write_text(tuned_yaml(recipe(), results(count=1)))
    assert load_recipe(str(path)) == recipe()
    assert "Nothing is decided yet" in path.read_text()


def test_an_unfinished_run_says_so_in_the_tuned_recipe():
    assert "# From an unfinished run: 4 of 9 rounds." in tuned_yaml(recipe(), results(planned=9))


class Page(HTMLParser):
    """Plot containers, table rows, and whatever would need the network."""

    def __init__(self) -> None:
        super().__init__()
        self.plots, self.rows, self.outside = [], 0, []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag == "div" and (found.get("id") or "").startswith("plot-"):
            self.plots.append(found["id"])
        self.rows += tag == "tr"
        if found.get("src") or (tag == "link" and found.get("href")):
            self.outside.append(tag)


def test_the_report_is_one_file_with_every_plot_and_number(tmp_path):
    files = write_results(tmp_path, results(), recipe())
    assert sorted(files) == [
        "records.csv", "report.html", "results.json", "summary.md", "tuned.yaml",
    ]  # fmt: skip
    text = files["report.html"].read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.plots == [f"plot-{place}" for place in range(6)]
    assert page.outside == []
    # Head and one choice; head and three servers; head, plain and two draft lengths.
    assert page.rows == 2 + 4 + 4
    for title in (
        "TPOT surface",
        "Speed-up against batch",
        "TPOT against draft length",
        "Acceptance by position",
        "Accepted tokens of a verify step",
        "Token timeline",
        "How to deploy it",
    ):
        assert title in text


def test_names_from_a_recipe_are_text_in_the_report(tmp_path):
    found = results(domains=("<script>x</script>", "b"))
    text = write_results(tmp_path, found, recipe())["report.html"].read_text(encoding="utf-8")
    assert "<script>x" not in text


def test_without_plotly_the_rest_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.tuning.output.find_spec", lambda name: None)
    assert "report.html" not in write_results(tmp_path, results(), recipe())


def test_undefined_numbers_are_drawn_as_absent(tmp_path):
    lone = results(count=1)  # one round: no intervals at all
    assert lone.choices[0].verdict == "undecided"
    assert "report.html" in write_results(tmp_path, lone, recipe())
    json.loads(to_json(lone), parse_constant=lambda name: pytest.fail(name))


def test_table_rows_say_what_to_use():
    found = results()
    plain, two, four = rows(found.cells, found.choices)
    assert plain == ("edit", "plain", "", "", "10.00", "10.00", "55.0", "", "", "")
    assert four[:5] == ("", "4", "50.0%", "3.00", "4.00")
    assert four[-3:] == ("2.50x", "2.50 .. 2.50", "best")
    assert two[-1] == ""
    assert len(four) == len(COLUMNS)
    off = results(LOSS)
    assert rows(off.cells, off.choices)[0][-1] == "off"


def test_a_second_run_into_the_same_directory_is_refused(tmp_path):
    with (
        results_directory(tmp_path / "new") as directory,
        pytest.raises(InputError, match="another spectool tune is writing here"),
        results_directory(directory),
    ):
        pass
    with results_directory(tmp_path / "new"):
        pass  # free again


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match="cannot write results here"),
        results_directory(tmp_path / "file" / "out"),
    ):
        pass
