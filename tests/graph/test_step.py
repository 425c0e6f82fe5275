"""A graph is refused when it is none, and knows its longest way."""

import pytest

from toolkit.errors import InputError
from toolkit.graph import show
from toolkit.graph.step import Graph, Needs, Step


def step(name, *inputs, seconds=1.0, done=False, **needs):
    return Step(
        id=name, kind="artefact", title=f"make {name}", inputs=inputs, seconds=seconds, done=done,
        needs=Needs(**needs),
    )  # fmt: skip


def test_a_cycle_is_named():
    with pytest.raises(InputError, match=r"in a circle: (a -> b -> c|b -> c -> a|c -> a -> b)"):
        Graph([step("a", "c"), step("b", "a"), step("c", "b")])


def test_every_unknown_input_is_named_at_once():
    with pytest.raises(InputError, match="a: its input x is no step; b: its input y is no step"):
        Graph([step("a", "x"), step("b", "y")])


def test_one_id_twice_is_refused():
    with pytest.raises(InputError, match="two steps have one id"):
        Graph([step("a"), step("a")])


@pytest.fixture
def diamond():
    """a (2 s) before b (5 s) and c (1 s), both before d (3 s): 2 + 5 + 3 = 10 s."""
    return Graph([
        step("a", seconds=2), step("b", "a", seconds=5), step("c", "a", seconds=1, gpus=2),
        step("d", "b", "c", seconds=3),
    ])  # fmt: skip


def test_the_critical_path_is_the_longest_way(diamond):
    assert diamond.critical_path == 10
    assert diamond.tails == {"a": 10, "b": 8, "c": 4, "d": 3}
    assert [s.id for s in show.critical_path(diamond)] == ["a", "b", "d"]


def test_what_is_done_takes_no_time():
    graph = Graph([step("a", seconds=7, done=True), step("b", "a", seconds=2)])
    assert graph.critical_path == 2
    assert [s.id for s in show.critical_path(graph)] == ["b"]


def test_text_has_numbers_of_the_steps_before(diamond):
    assert show.rows(diamond) == [
        ["1", "make a", "to do", "1 CPU", ""],
        ["2", "make b", "to do", "1 CPU", "1"],
        ["3", "make c", "to do", "1 CPU, 2 GPUs", "1"],
        ["4", "make d", "to do", "1 CPU", "2 3"],
    ]


def test_json_says_everything_of_a_step():
    needs = {"gpus": 1, "labels": {"gpu": "sm_90"}, "memory": 10**9, "paths": ("/w",)}
    document = show.to_json(Graph([step("a", done=True), step("b", "a", **needs)]))
    assert document["critical_path"] == ["b"]
    assert document["steps"][1] == {
        "id": "b", "kind": "artefact", "title": "make b", "inputs": ["a"], "outputs": [],
        "needs": {
            "cpus": 1.0, "memory_bytes": 10**9, "gpus": 1, "alone": False,
            "labels": {"gpu": "sm_90"}, "paths": ["/w"],
        },
        "expected_seconds": 1.0, "done": False,
    }  # fmt: skip


def test_mermaid_draws_every_arrow_and_reads_nothing_into_titles():
    evil = Step(id="x", kind="artefact", title='say "hi"]; <b>&amp; |', inputs=("a",))
    text = show.mermaid(Graph([step("a", done=True), evil]))
    lines = text.splitlines()
    assert lines[0] == "flowchart LR"
    assert lines[1] == '  s1["make a<br/><small>1 CPU</small>"]:::done'
    label = "say #34;hi#34;#93;#59; #60;b#62;#38;amp#59; #124;"
    assert lines[2] == f'  s2["{label}<br/><small>1 CPU</small>"]'
    assert lines[3] == "  s1 --> s2"
