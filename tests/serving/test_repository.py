"""Writing repositories: whole, ours, replaceable."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.serving.conftest import with_layout
from toolkit.errors import BuildError, InputError
from toolkit.registry import DRAFTERS
from toolkit.serving.lint import lint
from toolkit.serving.pbtxt import parameters_of, parse
from toolkit.serving.repository import repository_manifest, write_repository


def models(repository):
    return sorted(path.name for path in repository.iterdir() if path.is_dir())


def parameters(repository, model):
    return parameters_of(parse((repository / model / "config.pbtxt").read_text()))


def test_layout_bls_has_tensorrt_llms_models(bls_repository):
    assert models(bls_repository) == [
        "ensemble",
        "postprocessing",
        "preprocessing",
        "tensorrt_llm",
        "tensorrt_llm_bls",
        "tensorrt_llm_draft",
    ]
    assert all((bls_repository / name / "1").is_dir() for name in models(bls_repository))
    assert parameters(bls_repository, "tensorrt_llm")["role"] == "target"
    assert parameters(bls_repository, "tensorrt_llm_draft")["role"] == "draft"


def test_a_drafter_without_a_model_gets_no_draft_model(built, tmp_path):
    ngram = with_layout(built, "bls")
    speculation = DRAFTERS["ngram"].Options(max_draft_len=3)
    ngram = type(built)(
        ngram.recipe.model_copy(update={"speculation": speculation}),
        {"target": built.engines["target"]},
        {"target": built.tokenizers["target"]},
    )
    repository = write_repository(ngram, tmp_path / "repo")
    assert "tensorrt_llm_draft" not in models(repository)
    assert "tensorrt_llm_draft_model_name" not in parameters(repository, "tensorrt_llm_bls")
    assert lint(repository) == []


def test_layout_inprocess_is_one_model(inprocess_repository, built):
    assert models(inprocess_repository) == ["spectool"]
    engines = json.loads(parameters(inprocess_repository, "spectool")["engine_dirs"])
    assert engines == {role: str(path) for role, path in built.engines.items()}


@pytest.mark.parametrize("layout", ["bls", "inprocess"])
def test_a_repository_with_its_engines_inside_lints_clean_after_a_move(built, tmp_path, layout):
    made = write_repository(with_layout(built, layout), tmp_path / "a b", copy_engines=True)
    moved = tmp_path / "moved here"
    made.rename(moved)
    assert lint(moved) == []
    assert not any(str(tmp_path) in path.read_text() for path in moved.rglob("config.pbtxt"))


def test_a_second_write_replaces_ours_whole(built, tmp_path):
    out = tmp_path / "repo"
    write_repository(with_layout(built, "bls"), out)
    write_repository(with_layout(built, "inprocess"), out)
    assert models(out) == ["spectool"]
    assert [path.name for path in tmp_path.iterdir()] == ["repo"]


def test_a_directory_of_somebody_elses_is_left_alone(built, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not a repository that spectool wrote"):
        write_repository(built, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_artefact_of_the_store_is_not_a_repository(built, tmp_path):
    (tmp_path / "manifest.json").write_text('{"kind": "engines"}')
    with pytest.raises(InputError, match="not a repository"):
        write_repository(built, tmp_path)


def test_edits_are_not_lost_unless_forced(built, tmp_path):
    out = write_repository(with_layout(built, "bls"), tmp_path / "repo")
    config = out / "tensorrt_llm" / "config.pbtxt"
    config.write_text(config.read_text() + "# more memory\n")
    with pytest.raises(InputError, match=r"edited since spectool wrote it.*tensorrt_llm/config"):
        write_repository(with_layout(built, "bls"), out)
    write_repository(with_layout(built, "bls"), out, force=True)
    assert "# more memory" not in config.read_text()


def test_a_file_in_the_way_is_refused(built, tmp_path):
    out = tmp_path / "repo"
    out.write_text("")
    with pytest.raises(InputError, match="a file; a repository is a directory"):
        write_repository(built, out)


def test_a_failure_leaves_nothing_behind_and_the_old_one_in_place(built, tmp_path, monkeypatch):
    out = write_repository(with_layout(built, "bls"), tmp_path / "repo")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(BuildError, match="no space left"):
        write_repository(with_layout(built, "inprocess"), out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["repo"]


def test_the_manifest_ties_models_to_engines(bls_repository):
    manifest = repository_manifest(bls_repository)
    assert (manifest["layout"], manifest["entry"]) == ("bls", "tensorrt_llm_bls")
    assert manifest["models"]["tensorrt_llm_draft"] == {"role": "draft"}
    assert set(manifest["engines"]) == {"target", "draft"}
    assert "tensorrt_llm/config.pbtxt" in manifest["files"]
