"""Which models a rebuilt repository changes."""

from __future__ import annotations

import pytest

from tests.serving.conftest import with_layout
from toolkit.engine.built import BuiltModels
from toolkit.errors import InputError
from toolkit.serving.reload import Watcher, changed_models
from toolkit.serving.repository import repository_manifest, write_repository
from toolkit.serving.server import Address, TritonServer


def manifest(models, **files):
    return {"models": dict.fromkeys(models), "files": files}


def test_only_models_whose_files_changed_are_loaded_in_the_order_of_the_repository():
    old = manifest("abc", **{"a/config.pbtxt": 1, "b/config.pbtxt": 1, "b/1/model.py": 1})
    new = manifest(
        "bcda", **{"a/config.pbtxt": 1, "b/config.pbtxt": 1, "b/1/model.py": 2, "d/x": 1}
    )
    assert changed_models(old, new) == ("b", "d")


def test_a_rebuilt_repository_is_noticed_once(built, tmp_path):
    out = write_repository(with_layout(built, "bls"), tmp_path / "repo")
    fake = TritonServer(out, [], Address())
    watcher = Watcher(fake)
    asked = []
    watcher._control = lambda model, what: asked.append((what, model))
    assert watcher.poll() is None
    write_repository(with_layout(built, "bls"), out)
    assert watcher.poll().loaded == ()  # written anew, but nothing in it changed
    serve = built.recipe.speculation.model_copy(update={"max_draft_len": 2})
    changed = BuiltModels(
        built.recipe.model_copy(update={"speculation": serve}), built.engines, built.tokenizers
    )
    write_repository(with_layout(changed, "bls"), out)
    assert watcher.poll().loaded == ("tensorrt_llm_bls",)
    assert watcher.poll() is None
    served = set(repository_manifest(out)["models"])
    write_repository(with_layout(built, "inprocess"), out)
    found = watcher.poll()
    assert found.loaded == ("spectool",)
    assert set(found.unloaded) == served
    assert asked[1:] == [("load", "spectool"), *(("unload", name) for name in found.unloaded)]


def test_what_lint_refuses_is_not_loaded(built, tmp_path):
    out = write_repository(with_layout(built, "inprocess"), tmp_path / "repo")
    watcher = Watcher(TritonServer(out, [], Address()))
    watcher._control = lambda model, what: pytest.fail("asked the server")
    write_repository(with_layout(built, "bls"), out)
    (out / "ensemble" / "config.pbtxt").write_text('name: "else"\n')
    with pytest.raises(InputError, match="must equal its directory"):
        watcher.poll()
    assert watcher.poll() is None


def test_a_directory_of_somebody_else_is_not_watched(tmp_path):
    with pytest.raises(InputError, match="not written by spectool repo"):
        Watcher(TritonServer(tmp_path, [], Address()))


def test_the_manifest_lists_models_after_those_that_they_ask(bls_repository):
    names = list(repository_manifest(bls_repository)["models"])
    assert names[-2:] == ["tensorrt_llm_bls", "ensemble"]
