"""From a repository on one machine, through channels, to a served one on another."""

import json
import shutil

import pytest

from tests.recipes_for_tests import write_recipe


@pytest.fixture
def shared(tmp_path):
    return f"file://{tmp_path}/mount/team"


@pytest.fixture
def on(spectool, tmp_path, monkeypatch, shared):
    """`on("a", ...)` runs a command of `spectool store` on a machine with a cache of its own."""

    def run(machine, *words):
        monkeypatch.setenv("SPECTOOL_STORE", str(tmp_path / machine))
        return spectool(*words, "--store", shared)

    return run


@pytest.fixture
def repository(on, tmp_path):
    """`repository(LIMIT)` writes one, on machine a."""

    def make(limit=64, *words):
        path = write_recipe(tmp_path)
        out = tmp_path / f"repository-{limit}"
        change = ("--set", f"engine.max_seq_len={limit}")
        ran = on("a", "repo", path, "-o", out, *change, *words)
        assert (ran.code, ran.err) == (0, "")
        return out

    return make


def found(ran):
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def texts(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_text(encoding="utf-8")
        for path in directory.rglob("*")
        if path.name in ("config.pbtxt", "model.py")
    }


def test_a_set_goes_to_staging_to_production_to_a_server_and_back(on, repository, tmp_path):
    old, new = repository(64), repository(128)
    for out in (old, new):
        found(on("a", "store", "promote", out, "--to", "staging", "--json"))
        move = ("store", "promote", "tiny", "--from", "staging", "--to", "production")
        found(on("b", *move, "--json"))
    shutil.rmtree(tmp_path / "a")  # the machine that built it is gone
    there = tmp_path / "served"
    deploy = ("store", "deploy", "tiny", "--from", "production", "-o", there)
    release = found(on("c", *deploy, "--json"))
    assert (release["number"], release["why"]) == (2, "from staging #2")
    # The same files, with this machine's paths in place of the first one's.
    moved = {
        name: text.replace(str(tmp_path / "a"), str(tmp_path / "c")).replace(str(new), str(there))
        for name, text in texts(new).items()
    }
    assert texts(there) == moved
    assert str(tmp_path / "c" / "engines") in "".join(moved.values())
    back = found(on("b", "store", "rollback", "tiny", "--in", "production", "--json"))
    assert (back["number"], back["why"]) == (3, "rollback from #2 to #1")
    assert on("c", *deploy).code == 0
    assert (
        json.loads((there / "manifest.json").read_text())["recipe"]["engine"]["max_seq_len"] == 64
    )
    listed = on("c", "store", "channels").out.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [
        ["tiny", "production", "#3"],
        ["tiny", "staging", "#2"],
    ]
    assert len(found(on("c", "store", "channels", "tiny", "--json"))) == 5


def test_a_deployed_repository_is_lint_clean_and_can_be_promoted_again(
    on, spectool, repository, tmp_path
):
    found(on("a", "store", "promote", repository(), "--to", "staging", "--json"))
    there = tmp_path / "served"
    assert on("b", "store", "deploy", "tiny", "--from", "staging", "-o", there).code == 0
    assert spectool("lint", there).code == 0
    again = found(on("b", "store", "promote", there, "--to", "staging", "--json"))
    assert again["number"] == 1  # the same set


def test_prune_keeps_what_is_promoted(on, repository, tmp_path):
    release = found(on("a", "store", "promote", repository(), "--to", "staging", "--json"))
    found(on("a", "build", write_recipe(tmp_path), "--set", "engine.max_seq_len=256", "--json"))
    removed = found(on("a", "store", "prune", "--all", "--json"))["removed"]
    kept = {tuple(pair) for pair in release["artefacts"]}
    assert {kind for kind, _ in kept} == {"repositories", "engines", "tokenizers"}
    assert not kept & {(e["kind"], e["digest"]) for e in removed}
    assert sorted(e["kind"] for e in removed) == ["checkpoints", "engines"]
    there = tmp_path / "served"
    assert on("b", "store", "deploy", "tiny", "--from", "staging", "-o", there).code == 0


def test_a_repository_with_its_engines_inside_needs_nothing_else(on, repository, tmp_path):
    out = repository(64, "--copy-engines")
    release = found(on("a", "store", "promote", out, "--to", "staging", "--json"))
    assert [kind for kind, _ in release["artefacts"]] == ["repositories"]
    there = tmp_path / "served"
    assert on("b", "store", "deploy", "tiny", "--from", "staging", "-o", there).code == 0
    assert texts(there) == texts(out)


def test_what_cannot_be_promoted_or_deployed_is_said(on, repository, tmp_path):
    out = repository()
    config = next(out.rglob("config.pbtxt"))
    config.write_text(config.read_text() + "\n")
    ran = on("a", "store", "promote", out, "--to", "staging")
    assert (ran.code, ran.out) == (2, "")
    assert "edited since spectool wrote it" in ran.err
    ran = on("a", "store", "promote", tmp_path, "--to", "staging")
    assert "not a Triton repository that spectool wrote" in ran.err
    ran = on("a", "store", "promote", repository(128), "--to", "../x")
    assert (ran.code, "letters, digits" in ran.err) == (2, True)
    for words in (
        ("promote", "tiny", "--from", "staging", "--to", "production"),
        ("rollback", "tiny", "--in", "production"),
        ("deploy", "tiny", "--from", "production", "-o", tmp_path / "x"),
    ):
        ran = on("a", "store", *words)
        assert (ran.code, "nothing was promoted" in ran.err) == (2, True)
    assert "nothing was promoted" in on("a", "store", "channels").out


def test_a_repository_of_another_store_is_refused(on, spectool, repository, tmp_path):
    out = repository()
    ran = on("other", "store", "promote", out, "--to", "staging")
    assert (ran.code, ran.out) == (2, "")
    assert "points at what this store did not make\n  engine target" in ran.err
