"""`--store URL` and `spectool store` on a shared store, from the command line."""

import json

import pytest

from tests.recipes_for_tests import write_recipe


@pytest.fixture
def shared(tmp_path):
    return f"file://{tmp_path}/mount/team"


@pytest.fixture
def on(spectool, tmp_path, monkeypatch):
    """`on("a", ...)` runs a command on a machine with a cache of its own."""

    def run(machine, *words):
        monkeypatch.setenv("SPECTOOL_STORE", str(tmp_path / machine))
        return spectool(*words)

    return run


def found(ran):
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def test_a_second_machine_builds_nothing(on, tmp_path, shared):
    path = write_recipe(tmp_path)
    plan = found(on("a", "plan", path, "--store", shared, "--json"))
    assert [a["cached"] for a in plan["artefacts"]] == [False] * 3
    built = found(on("a", "build", path, "--store", shared, "--json"))["artefacts"]
    assert [a["cached"] for a in built] == [False] * 3
    assert on("b", "build", path, "--store", shared, "--require-cached").code == 0
    plan = found(on("c", "plan", path, "--store", shared, "--json"))
    assert [a["cached"] for a in plan["artefacts"]] == [True] * 3
    again = found(on("c", "build", path, "--store", shared, "--json"))["artefacts"]
    assert [(a["digest"], a["cached"]) for a in again] == [(a["digest"], True) for a in built]
    assert all(str(tmp_path / "c") in a["path"] for a in again)
    # What only engines are made from stays where it is until an engine has to be made.
    here = {entry["kind"] for entry in found(on("c", "store", "ls", "--json"))}
    assert here == {"tokenizers", "engines"}
    said = on("c", "generate", path, "--store", shared, "--prompt", "hello", "--max-tokens", "2")
    assert said.code == 0


def test_another_engine_of_a_shared_checkpoint_fetches_it(on, tmp_path, shared):
    path = write_recipe(tmp_path)
    found(on("a", "build", path, "--store", shared, "--json"))
    words = ("--set", "engine.max_seq_len=128", "--store", shared, "--jobs", "2", "--json")
    built = found(on("b", "build", path, *words))["artefacts"]
    assert sorted((a["kind"], a["cached"]) for a in built) == [
        ("checkpoints", True), ("engines", False), ("tokenizers", True),
    ]  # fmt: skip
    assert len(found(on("b", "store", "ls", "--json"))) == 3
    assert len(found(on("b", "store", "ls", "--store", shared, "--json"))) == 4


def test_what_was_built_alone_is_shared_by_the_next_build(on, tmp_path, shared):
    path = write_recipe(tmp_path)
    found(on("a", "build", path, "--json"))
    found(on("a", "build", path, "--store", shared, "--json"))
    assert on("b", "build", path, "--store", shared, "--require-cached").code == 0


def test_push_ls_verify_pull_prune(on, tmp_path, shared):
    path = write_recipe(tmp_path)
    found(on("a", "build", path, "--json"))
    assert found(on("a", "store", "ls", "--store", shared, "--json")) == []
    names = [f"{e['kind']}/{e['digest']}" for e in found(on("a", "store", "ls", "--json"))]
    engine = next(name for name in names if name.startswith("engines/"))
    some = found(on("a", "store", "push", engine, "--store", shared, "--json"))
    assert some == {"store": shared, "pushed": [engine], "there_already": [], "missing": []}
    rest = found(on("a", "store", "push", "--all", "--store", shared, "--json"))
    assert sorted([*rest["pushed"], engine]) == sorted(names)
    assert rest["there_already"] == [engine]
    listed = found(on("b", "store", "ls", "--store", shared, "--json"))
    assert sorted(f"{e['kind']}/{e['digest']}" for e in listed) == sorted(names)
    assert on("b", "store", "verify", "--store", shared).out == "3 of 3 artefact(s) intact\n"

    prefix = engine.split("/")[1][:8]
    pulled = found(on("b", "store", "pull", prefix, "--store", shared, "--json"))
    assert pulled["pulled"] == [engine]
    pulled = found(on("b", "store", "pull", path, "--store", shared, "--json"))
    assert (len(pulled["pulled"]), pulled["here_already"]) == (2, [engine])
    assert on("b", "store", "verify").out == "3 of 3 artefact(s) intact\n"

    gone = found(on("b", "store", "prune", "--all", "--dry-run", "--store", shared, "--json"))
    assert len(gone["removed"]) == 3
    assert len(found(on("b", "store", "ls", "--store", shared, "--json"))) == 3
    on("b", "store", "prune", "--all", "--store", shared)
    assert found(on("b", "store", "ls", "--store", shared, "--json")) == []
    assert len(found(on("b", "store", "ls", "--json"))) == 3  # its own are untouched


def test_prune_keeps_what_every_recipe_of_a_directory_uses(on, tmp_path, shared):
    folder = tmp_path / "recipes" / "llama"
    folder.mkdir(parents=True)
    text = write_recipe(tmp_path).read_text(encoding="utf-8")
    text = text.replace("./model", str(tmp_path / "model"))
    for name, limit in (("one", 64), ("two", 128), ("old", 256)):
        limits = text.replace("max_seq_len: 64", f"max_seq_len: {limit}")
        (folder / f"{name}.yaml").write_text(limits, encoding="utf-8")
        found(on("a", "build", folder / f"{name}.yaml", "--store", shared, "--json"))
    (folder / "old.yaml").unlink()
    words = ("store", "prune", "--keep-used-by", tmp_path / "recipes", "--store", shared)
    removed = found(on("a", *words, "--json"))["removed"]
    assert [(e["kind"], e["spec"]["limits"]["max_seq_len"]) for e in removed] == [("engines", 256)]
    for name in ("one", "two"):
        ran = on("b", "build", folder / f"{name}.yaml", "--store", shared, "--require-cached")
        assert ran.code == 0


def test_prune_keeps_a_used_engine_that_another_machine_built(on, tmp_path, shared, monkeypatch):
    path = write_recipe(tmp_path)
    monkeypatch.setattr("toolkit.engine.cpu.openvino_version", lambda: "1.0")
    plan = found(on("a", "plan", path, "--json"))
    monkeypatch.undo()
    monkeypatch.setenv("SPECTOOL_OFFLINE", "1")
    elsewhere = next(a for a in plan["artefacts"] if a["kind"] == "engines")
    from toolkit.store import open_store

    monkeypatch.setenv("SPECTOOL_STORE", str(tmp_path / "other"))
    store = open_store(shared)
    store.publish("engines", elsewhere["spec"], lambda out: (out / "x").write_text("x"))
    found(on("a", "build", path, "--store", shared, "--json"))
    keep = ("store", "prune", "--keep-used-by", path, "--store", shared, "--json")
    assert found(on("a", *keep))["removed"] == []
    assert store.remote.has("engines", elsewhere["digest"])


def test_prune_removes_nothing_when_it_cannot_tell_what_is_used(on, tmp_path, shared):
    path = write_recipe(tmp_path)
    found(on("a", "build", path, "--store", shared, "--json"))
    other = tmp_path / "hub.yaml"
    text = path.read_text(encoding="utf-8").replace("./model", "nobody/knows-this-one")
    other.write_text(text, encoding="utf-8")
    ran = on("a", "store", "prune", "--keep-used-by", path, "--keep", other, "--store", shared)
    assert (ran.code, ran.out) == (2, "")
    assert "hub.yaml" in ran.err
    (tmp_path / "empty").mkdir()
    ran = on("a", "store", "prune", "--keep-used-by", tmp_path / "empty", "--store", shared)
    assert (ran.code, ran.out) == (2, "")
    assert "no recipe" in ran.err
    assert len(found(on("a", "store", "ls", "--store", shared, "--json"))) == 3


def test_damage_is_reported_and_pruned(on, tmp_path, shared):
    found(on("a", "build", write_recipe(tmp_path), "--store", shared, "--json"))
    (part,) = (tmp_path / "mount").rglob("model.bin/00000")
    part.write_bytes(part.read_bytes()[:-1])
    ran = on("b", "store", "verify", "--store", shared)
    assert ran.code == 1
    assert "model.bin/00000 has" in ran.out
    assert "2 of 3" in ran.out
    ran = on("b", "store", "pull", "--all", "--store", shared)
    assert ran.code == 1
    assert "is damaged there, and nothing of it is used" in ran.err
    on("b", "store", "prune", "--damaged", "--store", shared)
    assert on("b", "store", "verify", "--store", shared).out == "2 of 2 artefact(s) intact\n"


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (["push", "abcdef12"], "no artefact with this digest", 2),
        (["push"], "say which: recipes or digests, or --all", 2),
        (["pull", "--all", "abcdef"], "say which", 2),
        (["pull", "nothere.yaml"], "no such file", 2),
        (["verify", "--require-signature"], "SPECTOOL_TRUSTED_KEYS", 2),
        (["ls", "--store", "s3://me:word@bucket/x"], "from the environment", 2),
    ],
)
def test_what_cannot_be_done_is_said(on, shared, words, says, code):
    ran = on("a", "store", *words, *([] if "--store" in words else ["--store", shared]))
    assert (ran.code, ran.out) == (code, "")
    assert says in ran.err
    assert "word" not in ran.err


def test_a_directory_is_not_shared(on, tmp_path):
    ran = on("a", "store", "push", "--all", "--store", tmp_path)
    assert ran.code == 2
    assert "s3://BUCKET/PREFIX" in ran.err


def test_what_a_recipe_needs_and_nobody_has_is_named(on, tmp_path, shared):
    path = write_recipe(tmp_path)
    ran = on("a", "store", "pull", path, "--store", shared)
    assert ran.code == 1
    assert "0 artefact(s) pulled" in ran.out
    assert ran.err.count("\n  ") == 3
