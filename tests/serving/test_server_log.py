"""Reasons out of a log that a real server wrote."""

from __future__ import annotations

from pathlib import Path

from toolkit.serving.server_log import reasons

# Written by Triton 2.51 with a model.py that raises; cut to what matters here.
LOG = Path(__file__).parents[1] / "golden" / "triton_broken_model.log"


def test_reasons_are_the_errors_without_the_noise():
    assert reasons(LOG) == [
        "failed to load 'inner' version 1: Internal: ValueError: boom at import",
        "  /repo/inner/1/model.py(9): initialize",
    ]


def test_a_log_without_errors_shows_its_end(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("one\ntwo\n\nthree\n")
    assert reasons(log) == ["one", "two", "three"]


def test_no_log_has_no_reasons(tmp_path):
    assert reasons(tmp_path / "none") == []
