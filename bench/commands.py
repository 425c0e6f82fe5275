"""This checkout's `spectool`, one command in a process of its own, for comparisons."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def spectool(*words: str) -> str:
    """What it prints on stdout; progress and errors go to stderr as ever, and an error ends us too.

    It runs where the caller stands, so that relative paths mean the same to both.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "toolkit.cli", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def settings(values: Iterable[str]) -> list[str]:
    """KEY=VALUE, each behind its --set."""
    return [word for value in values for word in ("--set", value)]
