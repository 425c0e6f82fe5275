"""Copying within the kernel, and what happens where it cannot."""

from __future__ import annotations

import errno
import os
from io import FileIO

import pytest

from toolkit.checkpoint import copy_range as module
from toolkit.checkpoint.copy_range import copy_range
from toolkit.errors import CheckpointError

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


def copied(source, start, count):
    with FileIO(source.parent / "copy", "w") as file:
        file.write(b"head")
        done = list(copy_range(source, start, count, file))
    return (source.parent / "copy").read_bytes(), done


def failing(number):
    def fail(*args):
        raise OSError(number, os.strerror(number))

    return fail


def test_a_range_is_appended_and_counted(source, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 1000)
    content, done = copied(source, 300, 2500)
    assert content == b"head" + CONTENT[300:2800]
    assert done == [1000, 1000, 500]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_the_kernel_cannot_the_bytes_are_read_and_written(source, monkeypatch, number):
    monkeypatch.setattr(os, "copy_file_range", failing(number))
    monkeypatch.setattr(module, "_BLOCK", 700)
    content, done = copied(source, 300, 2500)
    assert content == b"head" + CONTENT[300:2800]
    assert sum(done) == 2500


def test_a_full_disk_is_not_mistaken_for_an_old_kernel(source, monkeypatch):
    monkeypatch.setattr(os, "copy_file_range", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        copied(source, 0, 10)


def test_a_source_that_shrinks_is_an_error_not_an_endless_loop(source):
    with pytest.raises(CheckpointError, match="became shorter"):
        copied(source, len(CONTENT) - 5, 10)
