"""`spectool serve` refuses engines that are gone, changed or another machine's, before Triton."""

import json
import shutil
from pathlib import Path

import pytest

from tests.recipes_for_tests import write_recipe


@pytest.fixture
def engine(spectool, tmp_path):
    """A repository in `tmp_path/repo`; the directory of its engine in the store."""
    ran = spectool("repo", write_recipe(tmp_path), "-o", tmp_path / "repo")
    assert ran.code == 0, ran.err
    (path,) = (tmp_path / "store" / "engines").iterdir()
    return path


def edit(path, change):
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def lose_config(engine: Path) -> None:
    (engine / "config.json").unlink()


def edit_config(engine: Path) -> None:
    edit(engine / "config.json", lambda c: c["build_config"].update(max_batch_size=9))


def edit_one_byte(engine: Path) -> None:
    path = engine / "config.json"
    path.write_text(path.read_text(encoding="utf-8").replace(" ", "\t", 1), encoding="utf-8")


def put_another_in_its_place(engine: Path) -> None:
    edit(engine / "manifest.json", lambda manifest: manifest.update(digest="0" * 32))


def put_one_from_elsewhere_in_its_place(engine: Path) -> None:
    (engine / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (shutil.rmtree, "no config.json, so this is not an engine directory"),
        (lose_config, "no config.json, so this is not an engine directory"),
        (edit_config, "changed after it was built: config.json has"),
        (edit_one_byte, "changed after it was built: the content of config.json differs"),
        (put_another_in_its_place, f"engine {'0' * 32}, the repository was made for "),
        (put_one_from_elsewhere_in_its_place, "engine without a manifest, the repository was made"),
    ],
)
def test_an_engine_that_is_gone_or_changed(spectool, tmp_path, engine, change, says):
    change(engine)
    ran = spectool("serve", tmp_path / "repo", "--check")
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert str(engine) in ran.err or engine.name in ran.err


def test_an_engine_of_another_release(spectool, tmp_path, engine, monkeypatch):
    built_with = json.loads((engine / "manifest.json").read_text())["spec"]["openvino"]
    monkeypatch.setattr("toolkit.engine.cpu.openvino_version", lambda: "2031.1.0")
    ran = spectool("serve", tmp_path / "repo", "--check")
    assert (ran.code, ran.out) == (2, "")
    assert f"the target engine {engine} does not fit this machine" in ran.err
    assert f"openvino {built_with} -> 2031.1.0 (found -> needed)" in ran.err
    assert spectool("lint", tmp_path / "repo").code == 0  # it may be served elsewhere
