"""`spectool plan --graph` and builds of several recipes, from the command line."""

import json

from tests.recipes_for_tests import write_recipe


def test_the_graph_as_text_json_and_mermaid(spectool, tmp_path):
    path = write_recipe(tmp_path)
    text = spectool("plan", path, "--graph")
    assert (text.code, text.err) == (0, "")
    lines = text.out.splitlines()
    assert lines[0].split() == ["step", "state", "needs", "after"]
    assert lines[1].startswith("1   convert target")
    assert lines[-1].endswith(" steps, 0 done")
    document = json.loads(spectool("plan", path, "--graph", "--json").out)
    assert len(document["steps"]) == int(lines[-1].split()[0])
    assert document["critical_path"][0].startswith("checkpoints/")
    drawn = spectool("plan", path, "--mermaid").out
    assert drawn.startswith("flowchart LR\n  s1[")
    arrows = sum(len(step["inputs"]) for step in document["steps"])
    assert drawn.count(" --> ") == arrows
    spectool("build", path)
    assert spectool("plan", path, "--graph").out.splitlines()[-1].endswith(" steps, 3 done")


def test_several_recipes_at_once(spectool, tmp_path):
    one = write_recipe(tmp_path)
    two = tmp_path / "two.yaml"
    two.write_text(one.read_text().replace("name: tiny", "name: two").replace(": 64", ": 65"))
    assert spectool("plan", one, two).out.count("kind") == 2
    digests = spectool("plan", one, two, "--digest").out.splitlines()
    assert [line.split()[1] for line in digests] == ["tiny", "two"]
    assert digests[0].split()[0] == spectool("plan", one, "--digest").out.strip()
    report = tmp_path / "junit.xml"
    built = json.loads(spectool("build", one, two, "--json", "--junit", report).out)
    assert [found["recipe"]["name"] for found in built["recipes"]] == ["tiny", "two"]
    assert [row["kind"] for row in built["artefacts"]] == [
        "checkpoints", "tokenizers", "engines", "engines",
    ]  # fmt: skip
    assert 'tests="4" failures="0" skipped="0"' in report.read_text()
    assert spectool("build", one, two, "--require-cached").code == 0
