"""Whatever a user types: one clear message, the right exit code, no traceback."""

import json
import subprocess

import pytest

from tests.recipes_for_tests import write_recipe
from tests.tiny import write_checkpoint

BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
HEAD = "name: x\ntarget: {checkpoint: ./model}\n"


@pytest.mark.parametrize("command", ["check", "plan", "build"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n- b\n", "a recipe is a mapping"),
        ("", "empty"),
        ("a: " + "x" * 10_000_000, "larger than 1 MiB"),
        (BOMB, "aliases"),
        ("a: [1, 2", "not usable YAML"),
        (HEAD + "speculation: {drafter: ngram}\ntunee: {}\n", "did you mean 'tune'?"),
        (HEAD + "speculation: {drafter: ngram}\ntune: {k: 8..2}\n", "write 2..8 (line 4)"),
        (HEAD + "speculation: {drafter: ngram}\ntune: {k: 0}\n", "must be at least 1, got 0"),
        (HEAD + "speculation: {drafter: eagl}\n", "unknown drafter 'eagl'"),
    ],
    ids=["list", "empty", "10MB", "bomb", "syntax", "typo", "backwards", "zero", "drafter"],
)
def test_a_recipe_that_cannot_be_used(spectool, tmp_path, command, text, says):
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    ran = spectool(command, path)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.startswith("spectool: ")
    assert "Traceback" not in ran.err


def test_a_file_that_is_not_there(spectool, tmp_path):
    ran = spectool("check", tmp_path / "nope.yaml")
    assert ran.code == 2
    assert "no such file" in ran.err
    assert "`spectool recipes` lists them" in ran.err


def test_a_directory_instead_of_a_file(spectool, tmp_path):
    ran = spectool("plan", tmp_path)
    assert ran.code == 2
    assert "is a directory" in ran.err


@pytest.mark.parametrize("override", ["nonsense", "engine.max_seqlen=64", "tune.k=9..3", "=", "a="])
def test_a_bad_override(spectool, tmp_path, override):
    ran = spectool("check", write_recipe(tmp_path), "--set", override)
    assert ran.code == 2
    assert "(--set)" in ran.err
    assert "Traceback" not in ran.err


def damaged(folder, how):
    """A checkpoint directory with one thing wrong with it."""
    model = write_checkpoint(folder / "model", shards=2)
    shards = sorted(model.glob("*.safetensors"))
    if how == "shard missing":
        shards[1].unlink()
    elif how == "truncated":
        shards[0].write_bytes(shards[0].read_bytes()[:-10])
    elif how == "lying header":
        data = shards[0].read_bytes()
        shards[0].write_bytes((1 << 60).to_bytes(8, "little") + data[8:])
    elif how == "no config":
        (model / "config.json").unlink()
    elif how == "no tokenizer":
        (model / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("shard missing", "model-00002-of-00002.safetensors"),
        ("truncated", "model-00001-of-00002.safetensors"),
        ("lying header", "model-00001-of-00002.safetensors"),
        ("no config", "config.json"),
        ("no tokenizer", "tokenizer.json: missing"),
    ],
)
def test_a_damaged_checkpoint_is_found_before_a_build(spectool, tmp_path, how, says):
    damaged(tmp_path, how)
    path = write_recipe(tmp_path)
    for command in ("check", "build"):
        ran = spectool(command, path)
        assert ran.code == 2, command
        assert says in ran.err
        assert "Traceback" not in ran.err


def test_a_checkpoint_that_is_not_there(spectool, tmp_path):
    path = write_recipe(tmp_path)
    for command in ("check", "plan", "build"):
        ran = spectool(command, path, "--set", "target.checkpoint=./nowhere")
        assert ran.code == 2
        assert "nowhere" in ran.err


def test_a_draft_with_another_tokenizer_names_the_first_differing_tokens(spectool, tmp_path):
    draft = write_checkpoint(tmp_path / "draft", seed=1)
    tokenizer = json.loads((draft / "tokenizer.json").read_text(encoding="utf-8"))
    ids = tokenizer["model"]["vocab"]
    ids["!"], ids["#"] = ids["#"], ids["!"]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    path = write_recipe(tmp_path, "checkpoint: ./draft, dtype: float32")
    ran = spectool("check", path)
    assert ran.code == 2
    assert "draft tokenizer: " in ran.err
    assert f"{ids['#']} is '!' in one and '#' in the other" in ran.err


def test_a_missing_package_is_3_only_when_it_is_the_only_problem(spectool, tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.backends.cpu.backend.openvino_version", lambda: None)
    path = write_recipe(tmp_path)
    ran = spectool("check", path)
    assert ran.code == 3
    assert "pip install 'spectool[cpu]'" in ran.err
    ran = spectool("check", path, "--set", "tune.batch=99")
    assert ran.code == 2
    assert "pip install 'spectool[cpu]'" in ran.err


def test_a_full_disk_is_one_message_and_nothing_half_written(spectool, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        path = write_recipe(tmp_path)
        ran = spectool("build", path, "--store", disk)
        assert ran.code == 1
        assert "free" in ran.err.lower()
        assert "--store DIR" in ran.err
        assert "Traceback" not in ran.err
        assert list(disk.glob("[!.]*/*/*.safetensors")) == []
        assert list((disk / ".staging").iterdir()) == []
        ran = spectool("convert", tmp_path / "model", "-o", disk / "out", "--dtype", "float32")
        assert ran.code == 1
        assert not (disk / "out").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_output_directory_in_use_is_refused(spectool, tmp_path):
    write_recipe(tmp_path)
    ran = spectool("convert", tmp_path / "model", "-o", tmp_path)
    assert ran.code == 2
    assert "not empty" in ran.err


def test_options_of_a_checkpoint_do_not_go_with_a_recipe(spectool, tmp_path):
    path = write_recipe(tmp_path)
    ran = spectool("convert", path, "-o", tmp_path / "out", "--dtype", "float16", "--tp", "2")
    assert ran.code == 2
    assert "--dtype, --tp: for a checkpoint" in ran.err


def test_a_build_without_its_backends_package_says_so_before_it_starts(
    spectool, tmp_path, monkeypatch
):
    monkeypatch.setattr("toolkit.backends.cpu.backend.openvino_version", lambda: None)
    ran = spectool("build", write_recipe(tmp_path))
    assert (ran.code, ran.out) == (3, "")
    assert "pip install 'spectool[cpu]'" in ran.err
