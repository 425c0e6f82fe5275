"""Run trtllm-build: no shell, output to a log, an end in time, and nothing left behind."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from toolkit.engine.trtllm import guard
from toolkit.engine.trtllm.failures import explain
from toolkit.errors import BuildError

_POLL_S = 0.2
_WINDOW = 1 << 16  # bytes of new output that are looked at for a line to show


def run(
    command: Sequence[str],
    *,
    log: Path,
    timeout_s: float,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> None:
    """To the end, or BuildError with the log's path and, where it is known, the cause."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        sink.write(f"$ {shlex.join(command)}\n".encode())
        sink.flush()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(guard.__file__), *command],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # Ctrl-C reaches us, and we end it
        )
    try:
        code = _wait(process, log, timeout_s, show)
    finally:
        assert process.stdin
        process.stdin.close()  # from here on the guard ends the group by itself
        process.wait()
    if code is None:
        raise BuildError(
            f"{command[0]}: no end after {timeout_s:g} s, so it was stopped; if it only is slow, "
            "raise tensorrt.build_timeout_s",
            log,
        )
    if code != 0:
        with log.open(encoding="utf-8", errors="replace") as lines:
            cause = explain(lines, code)
        raise BuildError(_failed(command[0], code, cause, last_line(log)), log)


def _wait(
    process: subprocess.Popen[bytes], log: Path, timeout_s: float, show: Callable[[str], None]
) -> int | None:
    """The exit code; None when time is up. Shows the newest line of the log meanwhile."""
    deadline, size = time.monotonic() + timeout_s, 0
    while time.monotonic() < deadline:
        try:
            return process.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            if (grown := log.stat().st_size) != size:
                size = grown
                show(last_line(log))
    return None


def last_line(log: Path) -> str:
    """The newest line with anything on it, cut to a line of a terminal."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _WINDOW))
        text = file.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    newest = "".join(c if c.isprintable() else " " for c in lines[-1]) if lines else ""
    return newest if len(newest) <= 100 else newest[:97] + "..."


def _failed(program: str, code: int, cause: str | None, line: str) -> str:
    how = f"ended by signal {code - 128}" if code > 128 else f"exit code {code}"
    why = f": {cause}" if cause else ""
    return f"{program}: {how}{why}\n  last line: {line}"
