"""`spectool build --changed-since REV`: the recipes that would build something else."""

import json
import os
import subprocess

import pytest

from tests.recipes_for_tests import write_recipe


@pytest.fixture
def git(tmp_path, monkeypatch):
    """A repository with weights outside of git, and two recipes that share a base."""
    root = tmp_path / "repository"
    (root / "recipes").mkdir(parents=True)
    monkeypatch.chdir(root)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)

    def run(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit():
        run("add", "-A")
        run("commit", "-qm", "x")
        return run("rev-parse", "HEAD")

    run.root, run.commit = root, commit
    text = write_recipe(root).read_text(encoding="utf-8")
    (root / "r.yaml").rename(root / "recipes" / "base.yaml")
    run.edit = lambda name, old, new: (root / name).write_text(
        (root / name).read_text(encoding="utf-8").replace(old, new), encoding="utf-8"
    )
    run.edit("recipes/base.yaml", "./model", "../model")
    for name in ("one", "two"):
        (root / "recipes" / f"{name}.yaml").write_text(f"extends: base.yaml\nname: {name}\n")
    assert "max_seq_len: 64" in text
    (root / ".gitignore").write_text("model/\n")
    run("init", "-q")
    run.first = commit()
    return run


def affected(spectool, since, *recipes):
    names = recipes or ("recipes/one.yaml", "recipes/two.yaml")
    ran = spectool("build", *names, "--changed-since", since, "--dry-run", "--json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert sorted([*found["unaffected"], *(a["recipe"] for a in found["affected"])]) == sorted(
        names
    )
    return {
        a["recipe"].removeprefix("recipes/").removesuffix(".yaml"): a["why"]
        for a in found["affected"]
    }


def test_a_recipe_is_affected_when_bytes_would_change_and_only_then(spectool, git):
    assert affected(spectool, "HEAD") == {}
    git.edit("recipes/one.yaml", "name: one", "name: other\n# a comment\ntune: {k: 2..4}")
    assert affected(spectool, "HEAD") == {}
    git.edit("recipes/one.yaml", "name: other", "name: other\nengine: {max_seq_len: 128}")
    assert affected(spectool, "HEAD") == {"one": "would build something else than at HEAD"}
    second = git.commit()
    assert affected(spectool, second) == {}
    assert set(affected(spectool, git.first)) == {"one"}
    git.edit("recipes/base.yaml", "dtype: float32", "dtype: float16")
    assert set(affected(spectool, "HEAD")) == {"one", "two"}


def test_a_new_recipe_and_one_that_was_broken_are_affected(spectool, git):
    (git.root / "recipes" / "new.yaml").write_text("extends: base.yaml\nname: new\n")
    assert affected(spectool, "HEAD", "recipes/new.yaml") == {"new": "not in HEAD"}
    git.edit("recipes/two.yaml", "name: two", "nam: two")
    git.commit()
    git.edit("recipes/two.yaml", "nam: two", "name: two")
    assert affected(spectool, "HEAD") == {"two": "could not be planned at HEAD"}


def test_weights_in_the_repository_count(spectool, git):
    (git.root / ".gitignore").write_text("")
    git.commit()
    assert affected(spectool, "HEAD") == {}
    config = git.root / "model" / "config.json"
    config.write_text(config.read_text() + "\n")
    why = affected(spectool, "HEAD")
    assert set(why) == {"one", "two"}
    assert why["one"].endswith("model changed since HEAD")


def test_only_the_affected_are_built(spectool, git):
    git.edit("recipes/two.yaml", "name: two", "name: two\nengine: {max_seq_len: 128}")
    ran = spectool("build", "recipes", "--changed-since", "HEAD", "--summary", "out/summary.md")
    assert (ran.code, ran.err) == (0, "")
    assert len(ran.out.splitlines()) == 3
    lines = (git.root / "out" / "summary.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "### spectool build two"
    assert [line.split(" | ")[0] for line in lines[4:7]] == [
        "| checkpoint target", "| tokenizer target", "| engine target",
    ]  # fmt: skip
    assert all("| built in " in line for line in lines[4:7])
    ran = spectool("build", "recipes/one.yaml", "--changed-since", "HEAD")
    assert ran.out == "0 of 1 recipe(s) affected since HEAD\n"


def test_a_failed_build_is_in_its_summary_too(spectool, git):
    words = ("--require-cached", "--summary", "s.md")
    assert spectool("build", "recipes/one.yaml", *words).code == 1
    text = (git.root / "s.md").read_text(encoding="utf-8")
    assert text.count("| not made |") == 3
    assert "    3 artefact(s) are not in the store" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["recipes/one.yaml", "--changed-since", "nowhere"], "no such revision here"),
        (["recipes/one.yaml", "--changed-since", "--all"], "no such revision here"),
        (["smollm2/135m_ngram", "--changed-since", "HEAD"], "not a recipe file of the repository"),
    ],
)
def test_what_cannot_be_compared_is_said(spectool, git, words, says):
    ran = spectool("build", *words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_outside_of_a_repository_git_says_so(spectool, tmp_path, monkeypatch):
    path = write_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    ran = spectool("build", path, "--changed-since", "HEAD")
    assert ran.code == 2
    assert "not a git repository" in ran.err
