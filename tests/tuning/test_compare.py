"""Gates between two runs: what must not get worse, and what may."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuning.made_runs import rounds_of
from tests.tuning.test_grid import grid
from tests.tuning.test_results import LOSS, recipe, results
from toolkit.errors import InputError
from toolkit.tuning.compare import compare, load_old
from toolkit.tuning.markdown import summary_md
from toolkit.tuning.results import evaluate, to_json
from toolkit.tuning.session import Outcome

OLD = Path("old.json")


def against(new, old=None):
    before = json.loads(to_json(old or results()))
    return compare(before, OLD, new.choices, new.cells, new.settings)


def test_the_same_run_passes_every_gate():
    found = against(results())
    assert found.passed
    # The choice that was on, and the acceptance length of both draft lengths.
    assert [gate.what for gate in found.gates] == [
        "speed-up", "acceptance length, k = 2", "acceptance length, k = 4",
    ]  # fmt: skip


def test_a_lost_speed_up_fails_its_domain():
    fine, slow = {0: [10.0], 2: [5.0], 4: [4.0]}, {0: [10.0], 2: [9.0], 4: [8.0]}
    both = results(domains=("edit", "chat"))
    rounds = {**rounds_of(*[fine] * 4, domain="edit"), **rounds_of(*[slow] * 4, domain="chat")}
    plan = grid(4, batches=(1,), ks=(2, 4), domains=("edit", "chat"))
    new = evaluate(recipe(), plan, Outcome(rounds, 8, 0, interrupted=False), {}, {})
    failed = [gate for gate in against(new, both).gates if not gate.passed]
    # The pool of all domains lost as well; edit did not.
    assert [gate.domain for gate in failed] == ["chat", "all"]
    gate = failed[0]
    assert (gate.before, gate.after) == ("2.50x at k = 4", "1.25x at k = 4")


def test_what_is_off_now_fails_though_it_was_on():
    failed = [gate for gate in against(results(LOSS)).gates if not gate.passed]
    assert failed[0].after == "0.50x at k = 2 (off)"


def test_lower_acceptance_fails_and_two_percent_are_allowed():
    def drop(part):
        new = results()
        cells = [
            replace(c, acceptance_length=c.acceptance_length * part) if c.k == 4 else c
            for c in new.cells
        ]
        return against(replace(new, cells=cells))

    assert drop(0.99).passed
    assert not drop(0.97).passed


def test_other_conditions_are_noted_not_judged():
    old = replace(results(), settings={"k": [2, 4], "max_tokens": 8, "machine": "a"})
    new = replace(results(), settings={"k": [2, 4], "max_tokens": 64, "machine": "b"})
    found = against(new, old)
    assert found.passed
    assert found.notes == (
        "max_tokens was 8 then and is 64 now",
        "another machine: speed-ups may differ for that reason alone",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not JSON"),
        ("[1]", "schema None; expected results.json"),
        ('{"schema": "spectool.tune/0"}', "schema 'spectool.tune/0'"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, text, sentence):
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        load_old(path)
    with pytest.raises(InputError, match="not readable"):
        load_old(tmp_path / "none.json")


def test_a_result_with_holes_is_refused():
    new = results()
    with pytest.raises(InputError, match="not as spectool tune wrote it"):
        compare({"schema": "spectool.tune/1"}, OLD, new.choices, new.cells, {})
    with pytest.raises(InputError, match="no domain and batch size in common"):
        compare({"choices": [], "summary": [], "settings": {}}, OLD, new.choices, new.cells, {})


def test_the_markdown_summary_has_verdict_gates_and_escaped_cells():
    new = results(domains=("a|b", "c"))
    text = summary_md(new, against(new, new))
    assert text.startswith("## r: speculative decoding\n\nOver all prompts: k = 4 at batch 1")
    assert "### Against old.json" in text
    assert "| a\\|b | 1 | speed-up | 2.50x at k = 4 | 2.50x at k = 4 | pass |" in text
    for block in text.split("\n\n"):
        if block.startswith("|"):
            columns = {line.replace("\\|", "").count("|") for line in block.splitlines()}
            assert len(columns) == 1
