"""Run the command line in this process, as `cli.main` would be run by the script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from toolkit.cli import main


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def spectool(capsys, monkeypatch, tmp_path) -> Callable[..., Ran]:
    """`spectool("check", path)` with a store of its own and no network."""
    monkeypatch.setenv("SPECTOOL_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SPECTOOL_OFFLINE", "1")

    def run(*argv: object) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in argv])
        said = capsys.readouterr()
        return Ran(ended.value.code or 0, said.out, said.err)

    return run
