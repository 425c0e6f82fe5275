"""`spectool repo` and `spectool lint` from a recipe to a linted directory."""

import json

import pytest

from tests.recipes_for_tests import write_recipe


@pytest.mark.parametrize(
    ("layout", "entry", "models"),
    [
        ("inprocess", "spectool", ["spectool"]),
        (
            "bls",
            "tensorrt_llm_bls",
            ["preprocessing", "postprocessing", "tensorrt_llm", "tensorrt_llm_bls", "ensemble"],
        ),
    ],
)
def test_a_recipe_becomes_a_clean_repository(spectool, tmp_path, layout, entry, models):
    out = tmp_path / "my repo"
    recipe = write_recipe(tmp_path)
    ran = spectool("repo", recipe, "-o", out, "--set", f"serve.layout={layout}", "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document == {"repository": str(out), "models": models, "entry": entry}
    linted = spectool("lint", out, "--json")
    assert linted.code == 0
    assert json.loads(linted.out)["findings"] == []
    manifest = json.loads((out / "manifest.json").read_text())
    for kind in ("engines", "tokenizers"):
        assert [len(digest) for digest in manifest[kind].values()] == [32]


def test_the_last_line_is_what_to_type_next(spectool, tmp_path):
    out = tmp_path / "my repo"
    ran = spectool("repo", write_recipe(tmp_path), "-o", out)
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == f"next: spectool serve '{out}'"


def test_a_directory_of_somebody_elses_is_refused_before_anything_is_built(spectool, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    ran = spectool("repo", write_recipe(tmp_path), "-o", tmp_path / "out")
    assert ran.code == 2
    assert "not a repository that spectool wrote" in ran.err
    assert not (tmp_path / "store").exists()


def test_lint_says_where_and_ends_with_two(spectool, tmp_path):
    out = tmp_path / "repo"
    spectool("repo", write_recipe(tmp_path), "-o", out)
    config = out / "spectool" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size", "max_batch_sise", 1))
    ran = spectool("lint", out)
    assert ran.code == 2
    assert "error: spectool/config.pbtxt:" in ran.out
    assert 'has no field named "max_batch_sise"' in ran.out
    assert ran.out.splitlines()[-1].startswith("1 error(s)")
    document = json.loads(spectool("lint", out, "--json").out)
    assert document["errors"] == 1
    assert document["findings"][0]["line"] >= 1


def test_lint_of_nothing(spectool, tmp_path):
    ran = spectool("lint", tmp_path / "none")
    assert (ran.code, ran.out) == (2, "")
    assert "not a directory" in ran.err


def test_serve_without_the_wheel_says_what_to_install(spectool, tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.serving.triton_wheel.find_spec", lambda name: None)
    out = tmp_path / "repo"
    spectool("repo", write_recipe(tmp_path), "-o", out)
    ran = spectool("serve", out)
    assert (ran.code, ran.out) == (3, "")
    assert "pip install 'spectool[triton]'" in ran.err
    assert "Traceback" not in ran.err
